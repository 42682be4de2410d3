"""A choice of tools is followed by the model or refused, with the names that there are."""

from __future__ import annotations

import pytest

from safepoint import Agent, Handoff, ModelSettings, RunFailed, tool
from safepoint.models import ModelRequest
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools.base import BaseTool
from tests.virtual import virtual


@tool
def look(where: str) -> str:
    """Look."""
    return where


@tool(name="none")
def nothing() -> None:
    """Do nothing."""


def agent(choice: str, *tools: BaseTool, name: str = "scout") -> Agent[None, str]:
    model = ScriptedModel(call("look", where="here"), say("done"))
    return Agent(name, model=model, tools=tools, settings=ModelSettings(tool_choice=choice))


@pytest.mark.parametrize("choice", ["lok", "any", "AUTO", "final_answer"])
def test_a_choice_that_is_no_tool_is_refused_where_the_agent_is_made(choice: str) -> None:
    known = "write one of 'auto', 'none', 'required', 'look'"
    with pytest.raises(ValueError, match=f"tool_choice='{choice}' is no tool of this agent: {known}"):
        agent(choice, look)


def test_the_tool_of_a_typed_answer_can_be_chosen() -> None:
    settings = ModelSettings(tool_choice="final_answer")
    assert Agent("typed", model=ScriptedModel(), output=int, settings=settings).settings is settings


def test_a_tool_that_has_the_name_of_a_choice_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="'none' is a word of its own, and a tool has that name"):
        agent("none", nothing)


@virtual
@pytest.mark.parametrize("choice", ["auto", "none", "required", "look"])
async def test_a_choice_that_can_be_followed_goes_to_the_model(choice: str) -> None:
    scout = agent(choice, look)
    assert (await scout.run("go")).text == "done"
    assert isinstance(model := scout.models[0], ScriptedModel)
    assert [request.settings.tool_choice for request in model.requests] == [choice] * 2


def test_a_handoff_refuses_what_its_members_could_not_follow() -> None:
    bill, known = agent("auto", name="bill"), "write one of 'auto', 'none', 'required', 'transfer_to_bill'"
    first = agent("transfer_to_nobody")
    with pytest.raises(ValueError, match=f"'transfer_to_nobody' is no tool of this agent: {known}"):
        Handoff("desk", first, to={first: [bill]})


def test_a_handoff_refuses_to_force_a_member_that_has_no_tool() -> None:
    triage, bill = agent("auto", name="triage"), agent("required", name="bill")
    with pytest.raises(ValueError, match="tool_choice='required': there is no tool to call"):
        Handoff("desk", triage, to={triage: [bill]})


@virtual
@pytest.mark.parametrize("choice", ["transfer_to_bill", "required"])
async def test_a_member_can_be_made_to_hand_over(choice: str) -> None:
    settings = ModelSettings(tool_choice=choice)
    triage: Agent[None, str] = Agent("triage", model=ScriptedModel(call("transfer_to_bill")), settings=settings)
    bill: Agent[None, str] = Agent("bill", model=ScriptedModel(say("paid")))
    assert (await Handoff("desk", triage, to={triage: [bill]}).run("pay")).text == "paid"


@virtual
@pytest.mark.parametrize("choice", ["transfer_to_bill", "required"])
async def test_without_its_composite_such_a_choice_fails_before_the_model_is_called(choice: str) -> None:
    alone = agent(choice)
    with pytest.raises(RunFailed, match=f"tool_choice='{choice}'"):
        await alone.run("pay")
    assert isinstance(model := alone.models[0], ScriptedModel)
    assert model.calls == 0


def test_no_request_has_a_choice_that_its_tools_can_not_follow() -> None:
    with pytest.raises(ValueError, match="tool_choice='look' is no tool"):
        ModelRequest((), settings=ModelSettings(tool_choice="look"))
