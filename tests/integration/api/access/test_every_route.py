"""Every route with every right: alone, over the model, over its project, over another one."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from inference_store.access.rights import Right
from inference_store.api.access import Needs, Over, read_needs
from inference_store.api.routing import GuardedRoute
from inference_store.erasure import runs
from inference_store.index import unsettled
from inference_store.index.unsettled import Record, Rejection
from tests.answer_models import check_answer
from tests.builders import NOW
from tests.integration.api.conftest import Api, MakeApp, make_client
from tests.integration.stored_inferences import NewInference
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys
from .path_values import PARTITION, Ids, add_path_values
from .table import PUBLIC, TABLE, Row, fill_body

_WIDE = (Over.SOME, Over.EVERYTHING, Over.CALLER)
# A POST to these changes nothing.
_READING_ACTIONS = (
    "query",
    "count",
    "aggregate",
    "preview",
    "thumbnails",
    "neighbours",
    "evaluate",
    "drift",
)


def _order_of(route_key: tuple[str, str]) -> int:
    """Return where a route stands: reads first, erasures of the inference last."""
    method, path = route_key
    action = path.rsplit("/", 1)[1]
    if method == "GET" or action in _READING_ACTIONS:
        return 0
    if action in {"delete", "{inference_id}"}:
        return 3
    return 2 if method == "DELETE" else 1


_ROUTES = sorted(TABLE, key=_order_of)


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
async def guarded(make_app: MakeApp) -> AsyncIterator[Api]:
    """An api that answers one caller however often it asks, and with whatever key."""
    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=0)
    async with make_client(app) as client:
        yield client


@pytest.fixture
async def ids(guarded: Api, two_models: dict[str, int]) -> dict[str, Ids]:
    """Everything that a path may name about each of the two models, by model and parameter."""
    async with guarded.engine.begin() as connection:
        ids_by_model = {
            name: await add_path_values(connection, name, number, offset)
            for offset, (name, number) in enumerate(two_models.items())
        }
        rejection = Rejection("unknown_model", "x", "secret-unknown-model", None)
        record = Record(PARTITION, 7, NOW, b"k", b"secret-payload", ())
        await unsettled.add_dead(connection, [(record, rejection)])
        await runs.request_run(connection)
    return ids_by_model


class Request:
    """A request to one route of the table, about the secret model, with keys made once."""

    def __init__(self, keys: Keys, route_key: tuple[str, str], ids: Ids) -> None:
        self.row = TABLE[route_key]
        self.method, self.route = route_key
        self._keys, self._ids = keys, ids

    async def send(self, key: str | None, **absent: str) -> httpx.Response:
        """Send it; `absent`: values of the path that replace those of the model."""
        ids = self._ids | absent
        body = fill_body(self.row.body, ids)
        path = self.route.format(**ids) + self.row.query
        return await self._keys.ask(key, self.method, path, body)

    async def find_key(self, rights: list[Right] | str, **over: str) -> str:
        """Return the key that has rights, or a role, over a model, a project or everything."""
        grant = {"role": rights} if isinstance(rights, str) else {"rights": rights}
        return await self._keys.share({**grant, **over})

    async def send_with(self, rights: list[Right] | str, **over: str) -> httpx.Response:
        return await self.send(await self.find_key(rights, **over))


async def test_other_rights_and_scopes_are_refused_as_if_nothing_was_there(
    keys: Keys, guarded: Api, ids: dict[str, Ids], subtests: pytest.Subtests
) -> None:
    for route_key in _ROUTES:
        with subtests.test(" ".join(route_key)):
            request = Request(keys, route_key, ids[SECRET])
            before = await guarded.fetch("SELECT max(id) FROM audit")
            for key in (None, "wrong", "isk_abcdefghjkmn_" + "x" * 43, "a.b.c"):
                assert (await request.send(key)).status_code == 401, key
            for right in Right if request.row.over is not Over.CALLER else ():
                await _check_refusals(request, right)
            assert await guarded.fetch("SELECT max(id) FROM audit") == before, "audited"
            for over in ({"model_id": OPEN}, {"project_id": f"{OPEN}-project"}):
                await _check_hidden(request, over, ids[SECRET])


async def _check_refusals(request: Request, right: Right) -> None:
    """Check that other rights, with or without `read`, and the right one alone are refused."""
    row, over = request.row, _narrowest_scope(request.row)
    if right is not Right.READ:
        alone = await request.send_with([right], **over)
        assert alone.status_code == (403 if row.over in _WIDE else 404), right
    if right is not row.right and row.right is not Right.READ:
        both = await request.send_with([Right.READ, right], **over)
        assert (both.status_code, both.json()["type"]) == (403, "/docs/errors#forbidden"), right


async def _check_hidden(request: Request, over: dict[str, str], ids: Ids) -> None:
    """Check that every right over another model or another project shows nothing of this one."""
    row = request.row
    answer = await request.send_with("owner", **over)
    if row.over is Over.EVERYTHING:
        assert answer.status_code == 403
    elif row.over not in _WIDE or "{" in request.route:
        assert answer.status_code == 404, answer.text
        await _check_same_as_absent(request, over, ids, answer)
    elif row.names_model:
        assert answer.status_code == 404, answer.text
    else:
        assert answer.status_code == row.status
        assert "secret" not in answer.text
        if request.method != "POST" and row.shows_stored:
            assert "secret" in (await request.send(TOKEN)).text


async def _check_same_as_absent(
    request: Request, over: dict[str, str], ids: Ids, hidden: httpx.Response
) -> None:
    """Check that the refusal equals, to the letter, the one for something that does not exist."""
    uuid = "00000000-0000-4000-8000-000000000000"
    nothing = {"model_id": "nobody", "inference_id": "one", "run_id": uuid, "erasure_id": uuid}
    absent = {
        **nothing,
        **{"project_id": "nobody", "id": "999999", "key_id": "nobody", "hold_id": uuid},
        **{"view_id": uuid, "export_id": uuid, "number": "1", "certificate": "999999"},
        "event_id": "999999",
    }
    answer = await request.send(await request.find_key("owner", **over), **absent)
    parameter = next(name for name in absent if f"{{{name}}}" in request.route)
    assert answer.status_code == 404
    assert answer.text.replace(absent[parameter], ids[parameter]) == hidden.text
    assert _blank_varying_headers(answer.headers) == _blank_varying_headers(hidden.headers)


def _blank_varying_headers(headers: httpx.Headers) -> dict[str, str]:
    """Return the headers without the values that differ with each request."""
    return dict(headers) | {"content-length": "", "x-request-id": ""}


async def test_the_right_is_enough_and_a_change_is_in_the_audit(
    keys: Keys,
    guarded: Api,
    ids: dict[str, Ids],
    two_models: dict[str, int],
    subtests: pytest.Subtests,
) -> None:
    """A change finds what it names as it was at first: each has values of its own."""
    models: dict[tuple[str, str | None], Any] = {
        (method, context.path): getattr(context.original_route, "response_model", None)
        for context in iter_route_contexts(guarded.app.routes)
        for method in context.methods or ()
    }
    await guarded.store(NewInference("two", model_id=SECRET))  # windows of one are the same
    for offset, route_key in enumerate(_ROUTES, start=100):
        with subtests.test(" ".join(route_key)):
            own = ids[SECRET]
            if _order_of(route_key) > 0:
                number = two_models[SECRET]
                own = await guarded.transact(add_path_values, SECRET, number, offset)
            answer = await _check_allowed(Request(keys, route_key, own), guarded)
            if models[route_key] is not None and answer.status_code < 300:
                check_answer(models[route_key], answer.content)


async def _check_allowed(request: Request, guarded: Api) -> httpx.Response:
    """Check access with `read` and the right, over each scope; return the first answer."""
    row = request.row
    scopes: list[dict[str, str]] = [{"model_id": SECRET}, {"project_id": f"{SECRET}-project"}, {}]
    if row.over is Over.EVERYTHING:
        for over in scopes[:2]:
            assert (await request.send_with("owner", **over)).status_code == 403
        scopes = scopes[2:]
    rights = [Right.READ, row.right, *row.also]
    if row.over is Over.PROJECT:
        assert (await request.send_with(rights, **scopes[0])).status_code == 403
        scopes = scopes[1:]
    [before] = await guarded.fetch("SELECT coalesce(max(id), 0) FROM audit")
    answers = [await request.send_with(rights, **scopes[0])]
    if _order_of((request.method, request.route)) > 0:
        key = await request.find_key(rights, **scopes[0])
        entries = await guarded.fetch(f"SELECT actor, client FROM audit WHERE id > {before}")
        # a change has an entry with actor and client, and a refused one has none
        named = {(f"key:{key.split('_')[1]}", "127.0.0.1")}
        assert {tuple(entry) for entry in entries} == (named if row.status < 400 else set())
    answers += [await request.send_with(rights, **over) for over in scopes[1:]]
    statuses = [answer.status_code for answer in answers]
    # What the first request removed is missing for an owner too.
    owners = (await request.send(TOKEN)).status_code
    assert statuses[0] == row.status, answers[0].text
    assert set(statuses[1:]) <= {row.status, owners}
    assert not {401, 403} & set(statuses)
    return answers[0]


def _narrowest_scope(row: Row) -> dict[str, str]:
    project = {"project_id": f"{SECRET}-project"}
    return {Over.EVERYTHING: {}, Over.PROJECT: project}.get(row.over, {"model_id": SECRET})
