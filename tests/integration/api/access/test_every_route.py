"""Every route, asked with every right: alone, over the model, over its project, over another."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.rights import Right
from inference_store.api.access import GuardedRoute, Over
from inference_store.api.access.needs import Needs, read_needs
from inference_store.erasure import runs
from inference_store.index import dead_letters
from inference_store.index.accounting import open_partition
from inference_store.index.records import Record, Trouble
from tests.builders import NOW
from tests.integration.api.conftest import MakeApp
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys
from .named import PLACE, Ids, ids_of
from .table import PUBLIC, TABLE, Row, filled


def test_the_table_has_every_route(make_app: MakeApp) -> None:
    found = iter_route_contexts(make_app().routes)
    contexts = [(each.path, each) for each in found if each.path]
    routes = {(method, path): c for path, c in contexts for method in c.methods or ("MOUNT",)}
    guarded = {place: c for place, c in routes.items() if place[1] not in PUBLIC}
    assert set(guarded) == set(TABLE)
    for place, context in guarded.items():
        assert isinstance(context.original_route, GuardedRoute), place
        row = TABLE[place]
        assert read_needs(context.original_route.openapi_extra) == Needs(row.right, row.over), place


@pytest.fixture
async def ids(engine: AsyncEngine, two_models: dict[str, int]) -> dict[str, Ids]:
    """What a path may name, of each of the two models: all of it is there."""
    async with engine.begin() as connection:
        await open_partition(connection, PLACE, first=0, began="earliest")
        found = {
            name: await ids_of(connection, name, number, offset)
            for offset, (name, number) in enumerate(two_models.items())
        }
        named = Trouble("unknown_model", "x", "secret-unknown-model", None)
        record = Record(PLACE, 7, NOW, b"k", b"secret-payload", ())
        await dead_letters.add(connection, [(record, named)])
        await runs.request(connection)
    return found


Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.mark.parametrize("place", TABLE, ids=" ".join)
async def test_a_route(place: tuple[str, str], a_key: Keys, ids: dict[str, Ids]) -> None:
    row = TABLE[place]
    path, body = place[1].format(**ids[SECRET]) + row.query, filled(row.body, SECRET)

    async def ask(key: str | None) -> httpx.Response:
        return await a_key.ask(key, place[0], path, body)

    for key in (None, "wrong", "isk_abcdefghjkmn_" + "x" * 43, "a.b.c"):
        assert (await ask(key)).status_code == 401, key
    for right in Right:
        await _refused(row, right, a_key, ask)
    await _hidden(place, row, a_key, ids)
    await _allowed(row, a_key, ask)


async def _refused(row: Row, right: Right, a_key: Keys, ask: Ask) -> None:
    """A right that is not the one, with and without `read`; and the one without `read`."""
    over = _narrowest(row)
    if right is not Right.READ:
        alone = await a_key.make({"rights": [right], **over})
        assert (await ask(alone)).status_code == (403 if row.over in _WIDE else 404), right
    if right is not row.right and row.right is not Right.READ:
        both = await a_key.make({"rights": ["read", right], **over})
        answer = await ask(both)
        assert (answer.status_code, answer.json()["type"]) == (403, "/docs/errors#forbidden"), right


async def _hidden(place: tuple[str, str], row: Row, a_key: Keys, ids: dict[str, Ids]) -> None:
    """With every right over another model and another project, nothing of this one shows."""
    for over in ({"model_id": OPEN}, {"project_id": f"{OPEN}-project"}):
        other = await a_key.make({"role": "owner", **over})
        method, path = place[0], place[1].format(**ids[SECRET]) + row.query
        answer = await a_key.ask(other, method, path, filled(row.body, SECRET))
        if row.over is Over.EVERYTHING:
            assert answer.status_code == 403
        elif row.over not in _WIDE or "{" in place[1]:
            assert answer.status_code == 404, answer.text
            await _is_as_if_it_were_not(place, row, a_key, other, ids, answer)
        elif row.names_model:
            assert answer.status_code == 404, answer.text
        else:
            assert answer.status_code == row.status
            assert "secret" not in answer.text
            whole = await a_key.ask(TOKEN, method, path, filled(row.body, SECRET))
            assert "secret" in whole.text or method == "POST" or not row.shows_stored


async def _is_as_if_it_were_not(
    place: tuple[str, str], row: Row, a_key: Keys, key: str, ids: dict[str, Ids], hidden: Any
) -> None:
    """The same refusal as of what does not exist at all, to the letter."""
    uuid = "00000000-0000-4000-8000-000000000000"
    nothing = {"model_id": "nobody", "inference_id": "one", "run_id": uuid, "erasure_id": uuid}
    absent = {
        **nothing,
        "project_id": "nobody",
        "id": "999999",
        "key_id": "nobody",
        "hold_id": uuid,
        "certificate": "999999",
    }
    path = place[1].format(**absent) + row.query
    answer = await a_key.ask(key, place[0], path, filled(row.body, "nobody"))
    named = next(name for name in absent if f"{{{name}}}" in place[1])
    assert answer.status_code == 404
    assert answer.text.replace(absent[named], ids[SECRET][named]) == hidden.text
    assert _alike(answer.headers) == _alike(hidden.headers)


def _alike(headers: httpx.Headers) -> dict[str, str]:
    """But for what differs with each request."""
    return dict(headers) | {"content-length": "", "x-request-id": ""}


async def _allowed(row: Row, a_key: Keys, ask: Ask) -> None:
    """With `read` and the right, over the model, its project, or everything."""
    scopes = [{"model_id": SECRET}, {"project_id": f"{SECRET}-project"}, {}]
    if row.over is Over.EVERYTHING:
        for over in scopes[:2]:
            assert (await ask(await a_key.make({"role": "owner", **over}))).status_code == 403
        scopes = scopes[2:]
    rights = [Right.READ, row.right]
    if row.over is Over.PROJECT:
        assert (await ask(await a_key.make({"rights": rights, **scopes[0]}))).status_code == 403
        scopes = scopes[1:]
    statuses = []
    for over in scopes:
        answer = await ask(await a_key.make({"rights": rights, **over}))
        statuses.append(answer.status_code)
    # What is gone the first time is not there for an owner either.
    owners = (await ask(TOKEN)).status_code
    assert statuses[0] == row.status, statuses
    assert set(statuses[1:]) <= {row.status, owners}
    assert not {401, 403} & set(statuses)


# What a POST of these only asks.
_ASKING = ("query", "count", "aggregate", "preview")
_CHANGES = [
    place for place in TABLE if place[0] != "GET" and place[1].rsplit("/", 1)[1] not in _ASKING
]


@pytest.mark.parametrize("place", _CHANGES, ids=" ".join)
async def test_a_change_is_in_the_audit(
    place: tuple[str, str], a_key: Keys, ids: dict[str, Ids]
) -> None:
    """Who, and from where; nothing is noted of what was refused."""
    row, key = TABLE[place], await a_key.make({"role": "owner"})
    path, body = place[1].format(**ids[SECRET]) + row.query, filled(row.body, SECRET)
    answer = await a_key.ask(key, place[0], path, body)
    assert answer.status_code == row.status, answer.text
    actor = f"key:{key.split('_')[1]}"
    found = (await a_key.ask(TOKEN, "GET", f"/v1/audit?actor={actor}")).json()["items"]
    assert bool(found) == (row.status < 400)
    assert {each["client"] for each in found} <= {"127.0.0.1"}


_WIDE = (Over.SOME, Over.EVERYTHING)


def _narrowest(row: Row) -> dict[str, str]:
    """The least that a right may be given over."""
    project = {"project_id": f"{SECRET}-project"}
    return {Over.EVERYTHING: {}, Over.PROJECT: project}.get(row.over, {"model_id": SECRET})
