"""The conformance runner calls a tool of this name without arguments, and wants to be told of an error."""

from safepoint import Agent
from safepoint.testing import ScriptedModel

agent = Agent("test_error_handling", model=ScriptedModel())
