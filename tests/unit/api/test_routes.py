"""Every router of the api is served, and its paths are those that the OpenAPI tells."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.requests import Request

from inference_store import api
from inference_store.access.rights import ANYONE, Right
from inference_store.api.access import Access, Needs, Over
from inference_store.api.app import create_app
from inference_store.api.middleware import OTHER, Templates
from inference_store.api.routing import GuardedRoute, Router
from inference_store.index.database import create_engine
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings
from tests.unit.golden.test_openapi import NOWHERE


@pytest.fixture(scope="module")
def apps() -> Iterator[list[FastAPI]]:
    """Two apps with the same settings."""
    settings = make_settings(ApiSettings, **NOWHERE)
    engine = create_engine(settings.postgres_dsn.get_secret_value())
    with Blobs(settings) as blobs:
        yield [create_app(settings, engine, blobs) for _ in range(2)]


@pytest.fixture(scope="module")
def paths(apps: list[FastAPI]) -> dict[str, Any]:
    described: dict[str, Any] = apps[0].openapi()["paths"]
    return described


def test_the_routes_of_every_file_are_served(apps: list[FastAPI]) -> None:
    served = {id(route) for route in apps[0].router.routes}
    names = [module.name for module in walk_packages(api.__path__, "inference_store.api.")]
    routers = {name: vars(import_module(name)).get("router") for name in names}
    own = {name: router for name, router in routers.items() if isinstance(router, Router)}
    assert len(own) > 20
    assert [
        name for name, router in own.items() if {id(route) for route in router.routes} - served
    ] == [], "add them to the list in api/app.py"


def test_each_path_of_the_openapi_has_its_methods(
    apps: list[FastAPI], paths: dict[str, Any]
) -> None:
    templates: Templates = apps[0].state.templates
    assert len(paths) > 50
    for path, item in paths.items():
        filled_path = path.replace("{", "a-").replace("}", "")
        assert templates.of(path) == path
        assert templates.of(filled_path) != OTHER
        assert set(templates.methods(filled_path)) >= {method.upper() for method in item}
    assert templates.of("/v1/nowhere") == OTHER
    assert templates.methods("/v1/nowhere") == []


def test_a_route_that_streams_says_that_it_needs_the_right_export(paths: dict[str, Any]) -> None:
    streaming = {
        (path, method)
        for path, item in paths.items()
        for method, operation in item.items()
        if "A stream needs `export` as well" in operation["description"]
    }
    assert streaming == {
        ("/v1/models/{model_id}/inferences", "get"),
        ("/v1/models/{model_id}/inferences/query", "post"),
        ("/v1/inferences/query", "post"),
    }


async def _route() -> None: ...


def test_a_route_says_what_it_needs() -> None:
    router = APIRouter(route_class=GuardedRoute)
    with pytest.raises(TypeError, match="says what it needs"):
        router.add_api_route("/x", _route)


async def test_a_route_about_a_model_asks_for_it() -> None:
    request = Request({"type": "http"})
    with pytest.raises(RuntimeError, match=r"Access\.find_model"):
        await Access(request, ANYONE, None, Needs(Right.READ)).finish()
    await Access(request, ANYONE, None, Needs(Right.READ, Over.SOME)).finish()
