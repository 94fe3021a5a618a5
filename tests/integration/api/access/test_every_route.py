"""Every route with every right: alone, over the model, over its project, over another one."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.rights import Right
from inference_store.api.access import GuardedRoute, Over
from inference_store.api.access.needs import Needs, read_needs
from inference_store.erasure import runs
from inference_store.index import dead_letters
from inference_store.index.accounting import open_partition
from inference_store.index.records import Record, Rejection
from tests.answer_models import check_answer
from tests.builders import NOW
from tests.integration.api.conftest import MakeApp
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys
from .path_values import PARTITION, Ids, add_path_values
from .table import PUBLIC, TABLE, Row, fill_body


def test_the_table_has_every_route(make_app: MakeApp) -> None:
    all_contexts = iter_route_contexts(make_app().routes)
    contexts = [(context.path, context) for context in all_contexts if context.path]
    routes = {(method, path): c for path, c in contexts for method in c.methods or ("MOUNT",)}
    guarded = {route_key: c for route_key, c in routes.items() if route_key[1] not in PUBLIC}
    assert set(guarded) == set(TABLE)
    for route_key, context in guarded.items():
        assert isinstance(context.original_route, GuardedRoute), route_key
        row = TABLE[route_key]
        assert read_needs(context.original_route.openapi_extra) == Needs(row.right, row.over), (
            route_key
        )


@pytest.fixture
async def ids(engine: AsyncEngine, two_models: dict[str, int]) -> dict[str, Ids]:
    """Everything that a path may name about each of the two models, by model and parameter."""
    async with engine.begin() as connection:
        await open_partition(connection, PARTITION, first=0, began="earliest")
        ids_by_model = {
            name: await add_path_values(connection, name, number, offset)
            for offset, (name, number) in enumerate(two_models.items())
        }
        rejection = Rejection("unknown_model", "x", "secret-unknown-model", None)
        record = Record(PARTITION, 7, NOW, b"k", b"secret-payload", ())
        await dead_letters.add(connection, [(record, rejection)])
        await runs.request_run(connection)
    return ids_by_model


Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.mark.parametrize("route_key", TABLE, ids=" ".join)
async def test_route_requires_its_right(
    route_key: tuple[str, str], keys: Keys, ids: dict[str, Ids], make_app: MakeApp
) -> None:
    row = TABLE[route_key]
    path, body = route_key[1].format(**ids[SECRET]) + row.query, fill_body(row.body, SECRET)

    async def ask(key: str | None) -> httpx.Response:
        return await keys.ask(key, route_key[0], path, body)

    for key in (None, "wrong", "isk_abcdefghjkmn_" + "x" * 43, "a.b.c"):
        assert (await ask(key)).status_code == 401, key
    for right in Right if row.over is not Over.CALLER else ():
        await _check_refusals(row, right, keys, ask)
    await _check_hidden(route_key, row, keys, ids)
    answer = await _check_allowed(row, keys, ask)
    model = _find_model(make_app(), route_key)
    if model is not None and answer.status_code < 300:
        check_answer(model, answer.content)


async def _check_refusals(row: Row, right: Right, keys: Keys, ask: Ask) -> None:
    """Check that other rights, with or without `read`, and the right one alone are refused."""
    over = _narrowest_scope(row)
    if right is not Right.READ:
        alone = await keys.make({"rights": [right], **over})
        assert (await ask(alone)).status_code == (403 if row.over in _WIDE else 404), right
    if right is not row.right and row.right is not Right.READ:
        both = await keys.make({"rights": ["read", right], **over})
        answer = await ask(both)
        assert (answer.status_code, answer.json()["type"]) == (403, "/docs/errors#forbidden"), right


async def _check_hidden(
    route_key: tuple[str, str], row: Row, keys: Keys, ids: dict[str, Ids]
) -> None:
    """Check that every right over another model and another project shows nothing of this one."""
    for over in ({"model_id": OPEN}, {"project_id": f"{OPEN}-project"}):
        other = await keys.make({"role": "owner", **over})
        method, path = route_key[0], route_key[1].format(**ids[SECRET]) + row.query
        answer = await keys.ask(other, method, path, fill_body(row.body, SECRET))
        if row.over is Over.EVERYTHING:
            assert answer.status_code == 403
        elif row.over not in _WIDE or "{" in route_key[1]:
            assert answer.status_code == 404, answer.text
            await _check_same_as_absent(route_key, row, keys, other, ids, answer)
        elif row.names_model:
            assert answer.status_code == 404, answer.text
        else:
            assert answer.status_code == row.status
            assert "secret" not in answer.text
            whole = await keys.ask(TOKEN, method, path, fill_body(row.body, SECRET))
            assert "secret" in whole.text or method == "POST" or not row.shows_stored


async def _check_same_as_absent(
    route_key: tuple[str, str], row: Row, keys: Keys, key: str, ids: dict[str, Ids], hidden: Any
) -> None:
    """Check that the refusal equals, to the letter, the one for something that does not exist."""
    uuid = "00000000-0000-4000-8000-000000000000"
    nothing = {"model_id": "nobody", "inference_id": "one", "run_id": uuid, "erasure_id": uuid}
    absent = {
        **nothing,
        "project_id": "nobody",
        "id": "999999",
        "key_id": "nobody",
        "hold_id": uuid,
        "view_id": uuid,
        "export_id": uuid,
        "number": "1",
        "certificate": "999999",
    }
    path = route_key[1].format(**absent) + row.query
    answer = await keys.ask(key, route_key[0], path, fill_body(row.body, "nobody"))
    parameter = next(name for name in absent if f"{{{name}}}" in route_key[1])
    assert answer.status_code == 404
    assert answer.text.replace(absent[parameter], ids[SECRET][parameter]) == hidden.text
    assert _blank_varying_headers(answer.headers) == _blank_varying_headers(hidden.headers)


def _blank_varying_headers(headers: httpx.Headers) -> dict[str, str]:
    """Return the headers without the values that differ with each request."""
    return dict(headers) | {"content-length": "", "x-request-id": ""}


def _find_model(app: FastAPI, route_key: tuple[str, str]) -> Any:
    """Return the model of a route's answer; None if it answers no JSON, or a JSON Schema."""
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if context.path == route_key[1] and route_key[0] in (context.methods or ()):
            assert isinstance(route, GuardedRoute)
            return route.response_model
    raise AssertionError(f"there is no route {route_key}")


async def _check_allowed(row: Row, keys: Keys, ask: Ask) -> httpx.Response:
    """Check access with `read` and the right, over each scope; return the first answer."""
    scopes = [{"model_id": SECRET}, {"project_id": f"{SECRET}-project"}, {}]
    if row.over is Over.EVERYTHING:
        for over in scopes[:2]:
            assert (await ask(await keys.make({"role": "owner", **over}))).status_code == 403
        scopes = scopes[2:]
    rights = [Right.READ, row.right, *row.also]
    if row.over is Over.PROJECT:
        assert (await ask(await keys.make({"rights": rights, **scopes[0]}))).status_code == 403
        scopes = scopes[1:]
    answers = [await ask(await keys.make({"rights": rights, **over})) for over in scopes]
    statuses = [answer.status_code for answer in answers]
    # What the first request removed is missing for an owner too.
    owners = (await ask(TOKEN)).status_code
    assert statuses[0] == row.status, statuses
    assert set(statuses[1:]) <= {row.status, owners}
    assert not {401, 403} & set(statuses)
    return answers[0]


# A POST to these changes nothing.
_READING_ACTIONS = ("query", "count", "aggregate", "preview", "thumbnails", "neighbours")
_CHANGES = [
    route_key
    for route_key in TABLE
    if route_key[0] != "GET" and route_key[1].rsplit("/", 1)[1] not in _READING_ACTIONS
]


@pytest.mark.parametrize("route_key", _CHANGES, ids=" ".join)
async def test_a_change_is_in_the_audit(
    route_key: tuple[str, str], keys: Keys, ids: dict[str, Ids]
) -> None:
    """The entry names actor and client; a refused change adds none."""
    row, key = TABLE[route_key], await keys.make({"role": "owner"})
    path, body = route_key[1].format(**ids[SECRET]) + row.query, fill_body(row.body, SECRET)
    answer = await keys.ask(key, route_key[0], path, body)
    assert answer.status_code == row.status, answer.text
    actor = f"key:{key.split('_')[1]}"
    entries = (await keys.ask(TOKEN, "GET", f"/v1/audit?actor={actor}")).json()["items"]
    assert bool(entries) == (row.status < 400)
    assert {entry["client"] for entry in entries} <= {"127.0.0.1"}


_WIDE = (Over.SOME, Over.EVERYTHING, Over.CALLER)


def _narrowest_scope(row: Row) -> dict[str, str]:
    """Return the narrowest scope of a grant for this route."""
    project = {"project_id": f"{SECRET}-project"}
    return {Over.EVERYTHING: {}, Over.PROJECT: project}.get(row.over, {"model_id": SECRET})
