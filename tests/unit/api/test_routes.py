"""Every router of the api is served, and its paths are those that the OpenAPI tells."""

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from structlog.testing import capture_logs

from inference_store import api
from inference_store.access.rights import ANYONE, Right
from inference_store.api.access import Access, Needs, Over
from inference_store.api.app import create_app
from inference_store.api.conditions import InferenceLink, InferenceQuery, MetadataCondition
from inference_store.api.fields import ScoreRange, Window
from inference_store.api.inference_models import FIELD_PATTERN, FIELDS, PARTS, FieldSelection
from inference_store.api.middleware import OTHER
from inference_store.api.policies import PolicyBody, RuleBody, ShownPolicyVersion, ShownRule
from inference_store.api.routing import GuardedRoute, Router
from inference_store.index.database import create_engine
from inference_store.inference.errors import Invalid
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.properties import OPERATORS
from tests.settings import make_settings
from tests.unit.golden.test_captures import NOWHERE


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
    assert len(own) >= 20
    assert [
        name for name, router in own.items() if {id(route) for route in router.routes} - served
    ] == [], "add them to the list in api/app.py"


async def test_each_path_of_the_openapi_has_its_methods(
    apps: list[FastAPI], paths: dict[str, Any]
) -> None:
    transport = httpx.ASGITransport(apps[0])
    assert len(paths) > 50
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for page in ("/redoc", "/reference", "/openapi.json"):
            assert (await client.get(page)).status_code == 200, page
        for path, item in [*paths.items(), ("/v1/nowhere", {})]:
            with capture_logs() as lines:
                answer = await client.request("TRACE", path.replace("{", "a-").replace("}", ""))
            allowed = set(answer.headers.get("Allow", "").split(", "))
            assert allowed >= {method.upper() for method in item}, path
            assert answer.status_code == (405 if item else 404), path
            [route] = [line["route"] for line in lines if line["event"] == "request"]
            assert (route == OTHER) == (not item), path


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


# The names in the OpenAPI document are the names that the api reads.

_NAMES = [*FIELDS, *(f"{field}.{part}" for field, parts in PARTS.items() for part in parts)]


def test_a_field_matches_the_pattern_and_no_other_name_does(subtests: pytest.Subtests) -> None:
    for name in (*_NAMES, "metadata.frame_number", "metadata.a.b[]"):
        assert re.search(FIELD_PATTERN, name), name
        assert FieldSelection.of([name], []), name
    for name in ("frame_number", "predictions.nothing", "urls.", "uid.x", ""):
        with subtests.test(name):
            assert not re.search(FIELD_PATTERN, name)
            with pytest.raises(Invalid):
                FieldSelection.of([name], [])


def test_operators_are_an_enum_and_a_sort_matches_its_pattern() -> None:
    schema = MetadataCondition.model_json_schema()["properties"]["operator"]
    assert schema["enum"] == list(OPERATORS)
    schema = InferenceQuery.model_json_schema()["properties"]["sort"]
    for sort in ("-received_at", "frame_number", "metadata.width", "tag:string"):
        assert re.search(schema["pattern"], sort), sort
        assert InferenceQuery(sort=sort).sort == sort, sort


def test_fields_of_a_link_are_split_at_commas() -> None:
    for parameters, fields in (
        (["inference_id,uid"], ["inference_id", "uid"]),
        (["inference_id, metadata.a", "top_label"], ["inference_id", "metadata.a", "top_label"]),
        (["metadata.a,metadata.b,uid"], ["metadata.a", "metadata.b", "uid"]),
        (["metadata.a,b"], ["metadata.a,b"]),
        (["metadata.a,b, uid"], ["metadata.a,b", "uid"]),
        (["uid,nothing"], ["uid", "nothing"]),
    ):
        assert InferenceLink(fields=parameters).fields == fields, parameters


def test_a_policy_is_shown_with_every_field_of_its_rules_and_bounds() -> None:
    assert set(RuleBody.model_fields) - {"types"} == set(ShownRule.model_fields)
    bounds = set(PolicyBody.model_fields) - {"level", "id", "effective", "token"}
    assert bounds <= set(ShownPolicyVersion.model_fields)


_EARLY, _LATE = "2026-11-01T00:00:00Z", "2026-11-01T00:00:01Z"


def test_rejects_empty_spans(subtests: pytest.Subtests) -> None:
    kinds: list[tuple[type[BaseModel], str]] = [(Window, ""), (InferenceLink, "received_")]
    for since, until in ((_LATE, _EARLY), (_EARLY, _EARLY)):
        for kind, prefix in kinds:
            with (
                subtests.test(kind.__name__, since=since),
                pytest.raises(ValidationError, match="it must be later than") as caught,
            ):
                kind.model_validate({f"{prefix}from": since, f"{prefix}to": until})
            assert caught.value.errors()[0]["loc"] == (f"{prefix}to",)
    assert Window.model_validate({"from": _EARLY, "to": _LATE}).since
    assert InferenceLink.model_validate({"received_from": _EARLY, "received_to": _LATE}).query()
    assert Window.model_validate({"from": None, "to": _LATE}).until


def test_rejects_empty_ranges(subtests: pytest.Subtests) -> None:
    for bounds in (
        {"gt": 0.9, "lt": 0.2},
        {"gte": 0.9, "lte": 0.2},
        {"gt": 0.5, "lte": 0.5},
        {"gte": 0.5, "lt": 0.5},
        {"eq": 0.5, "lt": 0.5},
        {"eq": 0.5, "gte": 0.6},
    ):
        refused = pytest.raises(ValidationError, match="leaves no score below")
        with subtests.test(bounds=bounds), refused:
            ScoreRange.model_validate(bounds)
    for bounds in ({"gte": 0.5, "lte": 0.5}, {"gt": 0.4, "eq": 0.5, "lt": 0.6}, {"gt": 0.5}, {}):
        assert ScoreRange.model_validate(bounds).model_dump(exclude_none=True) == bounds, bounds
