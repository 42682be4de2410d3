"""The tools that Safepoint tests itself with, for users to test their own agents."""

from safepoint.testing.models import RuleModel, ScriptedModel, call, fail, raw, say, stall, think

__all__ = ["RuleModel", "ScriptedModel", "call", "fail", "raw", "say", "stall", "think"]
