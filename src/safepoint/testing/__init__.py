"""The tools that Safepoint tests itself with, for users to test their own agents."""

from safepoint.testing.clock import Deadlock, VirtualLoop, run_virtual
from safepoint.testing.conformance.engine import EngineSetup, check_engine, engine_agent
from safepoint.testing.conformance.model import check_model
from safepoint.testing.conformance.model_setup import ModelSetup, Situation
from safepoint.testing.conformance.storage import check_storage, check_store
from safepoint.testing.conformance.tool import check_tool
from safepoint.testing.injections import (
    CALLER,
    OWN,
    Injection,
    Shot,
    clock_jump,
    disconnect,
    may_raise,
    model_error,
    must_return,
    store_error,
    tool_error,
)
from safepoint.testing.injector import check_cancellable
from safepoint.testing.models import RuleModel, ScriptedModel, call, fail, raw, say, stall, think
from safepoint.testing.points import Moment
from safepoint.testing.report import Failure, Report
from safepoint.testing.sites import Site, never_reached
from safepoint.testing.virtual_sleep import pass_time

__all__ = [
    "CALLER",
    "OWN",
    "Deadlock",
    "EngineSetup",
    "Failure",
    "Injection",
    "ModelSetup",
    "Moment",
    "Report",
    "RuleModel",
    "ScriptedModel",
    "Shot",
    "Site",
    "Situation",
    "VirtualLoop",
    "call",
    "check_cancellable",
    "check_engine",
    "check_model",
    "check_storage",
    "check_store",
    "check_tool",
    "clock_jump",
    "disconnect",
    "engine_agent",
    "fail",
    "may_raise",
    "model_error",
    "must_return",
    "never_reached",
    "pass_time",
    "raw",
    "run_virtual",
    "say",
    "stall",
    "store_error",
    "think",
    "tool_error",
]
