"""A model is chosen by a string, and a string that names none is refused with the ones that do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from safepoint import Agent, ModelSettings
from safepoint.agent.model import ModelRequest
from safepoint.errors import ModelNotReady
from safepoint.history.parts import user_message
from safepoint.models.extras import check_installed, sdk
from safepoint.models.openai import OpenAIModel
from safepoint.models.providers import COMPATIBLE
from safepoint.models.registry import PROVIDERS, choose_model
from safepoint.testing import ScriptedModel
from safepoint.tools.base import ToolSpec


@pytest.mark.parametrize(
    "choice", ["openai:gpt-5", "ollama:llama3.2", "http://127.0.0.1:8080/v1#m", "https://x.org/v1#m"]
)
def test_a_model_has_the_name_that_chose_it(choice: str) -> None:
    model = choose_model(choice)
    assert isinstance(model, OpenAIModel)
    assert model.name == choice
    assert Agent("a", model=choice).models[0].name == choice


@pytest.mark.parametrize(
    "choice", ["", "gpt-5", "openai", "openai:", "openai: ", "nobody:large", "Openai:x", "ftp://x#y"]
)
def test_a_string_that_names_no_model_is_refused_with_the_known_ones(choice: str) -> None:
    with pytest.raises(ValueError, match="names no model") as caught:
        Agent("a", model=choice)
    for provider in PROVIDERS:
        assert provider in str(caught.value)


def test_an_address_without_a_name_is_refused_with_the_right_form() -> None:
    with pytest.raises(ValueError, match=r"write 'http://127\.0\.0\.1/v1#NAME'"):
        Agent("a", model="http://127.0.0.1/v1")


def test_fallback_models_are_chosen_in_the_same_way() -> None:
    agent = Agent("a", model=ScriptedModel(), fallback=["openai:gpt-5"])
    assert [model.name for model in agent.models] == ["scripted", "openai:gpt-5"]
    with pytest.raises(ValueError, match="is not a list"):
        Agent("a", model=ScriptedModel(), fallback="openai:gpt-5")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("box:1234", "http://box:1234/v1"),
        ("https://ollama.example.org/", "https://ollama.example.org/v1"),
    ],
)
def test_ollama_is_where_its_own_variable_says(host: str, address: str) -> None:
    assert COMPATIBLE["ollama"].find_address({"OLLAMA_HOST": host}) == address


def test_ollama_does_without_a_choice_of_tools_what_it_can_and_refuses_the_rest() -> None:
    look, model = ToolSpec("look", "Look.", {"type": "object"}), OpenAIModel("m", provider="ollama")

    def payload(choice: str | None) -> dict[str, object]:
        return model.payload(ModelRequest((user_message("go"),), None, (look,), ModelSettings(tool_choice=choice)))

    assert payload("auto") == payload(None)
    assert "tools" in payload(None)
    assert not {"tools", "tool_choice"} & set(payload("none"))
    for choice in ("required", "look"):
        with pytest.raises(ValueError, match=f"tool_choice='{choice}': ollama:m can't be made to call a tool"):
            payload(choice)


def test_a_missing_package_is_said_in_words_to_type() -> None:
    for look in (sdk, check_installed):
        with pytest.raises(ModelNotReady, match=r"pip install 'safepoint\[openai\]'"):
            look("no_such_sdk", "openai")


def test_choosing_loads_only_the_sdk_that_is_needed() -> None:
    program = (
        "import sys; from safepoint import Agent; from safepoint.models import registry; "
        "assert 'openai' not in sys.modules; Agent('a', model='http://h/v1#m'); "
        "assert 'openai' in sys.modules and 'anthropic' not in sys.modules and 'google.genai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=50)
