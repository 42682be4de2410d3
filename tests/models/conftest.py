"""One real llama.cpp server for all tests, with random weights."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from safepoint.models.llama import LlamaOptions, LlamaServer
from tests.models.random_weights import CONTEXT, write_caller, write_weights


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "random.gguf"
    write_weights(path)
    return path


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights whose chat template knows tools, and which call one whenever they may."""
    path = tmp_path_factory.mktemp("weights") / "caller.gguf"
    write_caller(path)
    return path


@pytest.fixture(scope="session")
def llama(weights: Path) -> Generator[LlamaServer]:
    server = LlamaServer(weights, LlamaOptions(slots=32, context=CONTEXT))
    yield server
    server.close()
