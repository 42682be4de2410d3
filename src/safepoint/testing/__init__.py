"""The tools that Safepoint tests itself with, for users to test their own agents."""

from safepoint.testing.clock import Deadlock, VirtualLoop, run_virtual
from safepoint.testing.injector import check_cancellable
from safepoint.testing.models import RuleModel, ScriptedModel, call, fail, raw, say, stall, think
from safepoint.testing.passing import pass_time
from safepoint.testing.report import Failure, Report

__all__ = [
    "Deadlock",
    "Failure",
    "Report",
    "RuleModel",
    "ScriptedModel",
    "VirtualLoop",
    "call",
    "check_cancellable",
    "fail",
    "pass_time",
    "raw",
    "run_virtual",
    "say",
    "stall",
    "think",
]
