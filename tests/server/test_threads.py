"""The server answers on its loop: FastAPI runs what is not `async` in threads of its own, and keeps those."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIWebSocketRoute

from safepoint.server import routes


def test_every_route_and_all_that_it_depends_on_is_async() -> None:
    modules = [import_module(f"{routes.__name__}.{module.name}") for module in pkgutil.iter_modules(routes.__path__)]
    routers = [router for module in modules if isinstance(router := vars(module).get("routes"), APIRouter)]
    served = [route for router in routers for route in router.routes if isinstance(route, APIRoute | APIWebSocketRoute)]
    assert len(served) > 20
    called = {dependant.call for route in served for dependant in with_dependencies(route.dependant)}
    assert [call for call in called if not inspect.iscoroutinefunction(call)] == []


def with_dependencies(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for inner in dependant.dependencies:
        yield from with_dependencies(inner)
