"""Models: the protocol, what a model is asked, the chunks it answers with, and the models of providers.

Write your own with the names of the protocol. The classes below load their SDK when one is made, not before.
"""

from safepoint.agent.model import (
    CallDelta,
    Chunk,
    Finish,
    Model,
    ModelRequest,
    ModelSettings,
    ReasoningDelta,
    TextDelta,
)
from safepoint.models.anthropic import AnthropicModel, BedrockModel
from safepoint.models.gemini import GeminiModel
from safepoint.models.llama import LlamaOptions
from safepoint.models.local import LocalModel
from safepoint.models.model_choice import ModelChoice
from safepoint.models.openai import OpenAIModel
from safepoint.models.registry import choose_model
from safepoint.models.responses import OpenAIResponsesModel
from safepoint.models.vertex import VertexClaudeModel, VertexModel
from safepoint.tools.base import ToolSpec

__all__ = [
    "AnthropicModel",
    "BedrockModel",
    "CallDelta",
    "Chunk",
    "Finish",
    "GeminiModel",
    "LlamaOptions",
    "LocalModel",
    "Model",
    "ModelChoice",
    "ModelRequest",
    "ModelSettings",
    "OpenAIModel",
    "OpenAIResponsesModel",
    "ReasoningDelta",
    "TextDelta",
    "ToolSpec",
    "VertexClaudeModel",
    "VertexModel",
    "choose_model",
]
