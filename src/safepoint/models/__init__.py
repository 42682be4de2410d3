"""What a model is: the protocol, what it is asked, and the chunks it answers with. Write your own with these names."""

from safepoint.agent.model import (
    CallDelta,
    Chunk,
    Finish,
    Model,
    ModelRequest,
    ModelSettings,
    ReasoningDelta,
    TextDelta,
    ToolSpec,
)

__all__ = [
    "CallDelta",
    "Chunk",
    "Finish",
    "Model",
    "ModelRequest",
    "ModelSettings",
    "ReasoningDelta",
    "TextDelta",
    "ToolSpec",
]
