"""The tools that Safepoint tests itself with, for users to test their own agents."""

from safepoint.testing.clock import Deadlock, VirtualLoop, run_virtual
from safepoint.testing.conformance.model import check_model
from safepoint.testing.conformance.model_setup import ModelSetup, Situation
from safepoint.testing.conformance.store import check_store
from safepoint.testing.conformance.tool import check_tool
from safepoint.testing.injector import check_cancellable
from safepoint.testing.models import RuleModel, ScriptedModel, call, fail, raw, say, stall, think
from safepoint.testing.passing import pass_time
from safepoint.testing.report import Failure, Report

__all__ = [
    "Deadlock",
    "Failure",
    "ModelSetup",
    "Report",
    "RuleModel",
    "ScriptedModel",
    "Situation",
    "VirtualLoop",
    "call",
    "check_cancellable",
    "check_model",
    "check_store",
    "check_tool",
    "fail",
    "pass_time",
    "raw",
    "run_virtual",
    "say",
    "stall",
    "think",
]
