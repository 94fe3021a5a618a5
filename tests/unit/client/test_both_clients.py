"""Requests, retries, redirects, keys and refusals: the same for both clients."""

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, assert_type

import httpx
import pytest

import inference_store_client as package
from inference_store_client import (
    AsyncExport,
    AsyncInference,
    AsyncInferences,
    AsyncStore,
    ConnectionFailed,
    Export,
    Forbidden,
    Inference,
    Inferences,
    InvalidRequest,
    NotFound,
    Redirected,
    Retries,
    SettingsError,
    Store,
    StoreError,
    TooManyRequests,
    Unavailable,
    UnexpectedAnswer,
    meta,
    tables,
)
from inference_store_client.settings import DEFAULT_RETRIES, read_retry_after
from inference_store_client.tables import Rows
from inference_store_client.values.answers import Page
from inference_store_client.values.models import Registration
from tests.both_clients import Client, Recorded, make_item, make_page, make_problem

_PATH = "/v1/models/hallway%2Fdetector/inferences"
_COUNT = {"count": 17, "warnings": []}
_KEY = "the-key"
_CHANGES = (("DELETE", "/v1/holds/1"), ("POST", "/v1/holds"))


def answer(body: Any, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


def page_of(*numbers: int, next: str | None = None) -> httpx.Response:
    return make_page(*map(make_item, numbers), next=next)


def ask_count(store: Any) -> Callable[[], Any]:
    return lambda: store.model("hallway/detector").inferences(meta.n > 1).count()


async def test_a_count_is_one_request_of_a_client_that_stays_open(client: Client) -> None:
    recorded = Recorded([answer(_COUNT)])
    store = client.make_answered(recorded, _KEY)
    inferences = store.model("hallway/detector").inferences(
        meta.n > 1, since=datetime(2026, 11, 1, tzinfo=UTC), until="2026-12-01T00:00:00Z"
    )
    assert not recorded.requests
    assert "hallway" in repr(inferences)
    assert await client.ask(inferences.count) == 17
    [request] = recorded.requests
    assert (request.method, request.url.raw_path) == ("POST", f"{_PATH}/count".encode())
    assert request.headers["authorization"] == f"Bearer {_KEY}"
    assert json.loads(request.content) == {
        "filter": {"op": ">", "args": [{"property": "metadata.n"}, 1]},
        "filter_lang": "cql2-json",
        "received_at": {"from": "2026-11-01T00:00:00.000000Z", "to": "2026-12-01T00:00:00.000000Z"},
    }
    recorded = Recorded([answer(_COUNT), answer(_COUNT)])
    store = client.make_answered(recorded)
    await client.ask(store.close)
    assert await client.ask(ask_count(store)) == 17


async def test_pages_go_on_to_the_end_and_the_first_is_looked_for_there(client: Client) -> None:
    recorded = Recorded([page_of(1, 2, next="a"), page_of(next="b"), page_of(3)])
    store = client.make_answered(recorded)
    pages = await client.list(lambda: store.model("m").inferences("n > 1").pages(2))
    assert [[item.inference_id for item in page.items] for page in pages] == [
        ["frame-1", "frame-2"],
        [],
        ["frame-3"],
    ]
    bodies = [json.loads(request.content) for request in recorded.requests]
    assert [body.get("cursor") for body in bodies] == [None, "a", "b"]
    assert all(body["limit"] == 2 and body["filter"] == "n > 1" for body in bodies)
    recorded = Recorded([page_of(next="a"), page_of(7), page_of()])
    inferences = client.make_answered(recorded).model("m").inferences()
    assert (await client.ask(inferences.first)).inference_id == "frame-7"
    assert await client.ask(inferences.first) is None
    assert json.loads(recorded.requests[1].content)["limit"] == 1


async def test_a_read_is_sent_again_but_not_for_ever(client: Client) -> None:
    troubles: list[httpx.Response | Exception] = [
        make_problem(429),
        make_problem(503, "busy"),
        httpx.Response(502, text="Bad gateway"),
        httpx.ConnectError("refused"),
        httpx.RemoteProtocolError("cut"),
        httpx.ReadTimeout("slow"),
    ]
    recorded = Recorded([*troubles[:5], answer(_COUNT), *troubles[5:], answer(_COUNT)])
    store = client.make_answered(recorded)
    assert [await client.ask(ask_count(store)) for _ in range(2)] == [17, 17]
    assert not recorded.answers
    cases: list[tuple[httpx.Response | Exception, type[StoreError]]] = [
        (make_problem(429), TooManyRequests),
        (make_problem(503), Unavailable),
        (httpx.ConnectError("refused"), ConnectionFailed),
    ]
    for trouble, error in cases:
        recorded = Recorded([answer(_COUNT), *[trouble] * 3])
        store = client.make_answered(recorded, retries=Retries(attempts=3, first_wait_seconds=0))
        assert await client.ask(ask_count(store)) == 17
        with pytest.raises(error):
            await client.ask(ask_count(store))
        assert not recorded.answers, trouble


async def test_an_address_where_nothing_has_answered_is_given_up_at_once(client: Client) -> None:
    recorded = Recorded([httpx.ConnectError("refused")])
    said = r"https://store\.example: refused .*is the store running, and is this its address\?"
    with pytest.raises(ConnectionFailed, match=said):
        await client.ask(ask_count(client.make_answered(recorded, retries=DEFAULT_RETRIES)))
    recorded = Recorded([httpx.ConnectError("refused"), answer(_COUNT)])
    given = Retries(attempts=2, first_wait_seconds=0)
    assert await client.ask(ask_count(client.make_answered(recorded, retries=given))) == 17
    elsewhere = Recorded([httpx.Response(404, text="<h1>Not Found</h1>")])
    said = r"(?s)Is the store at https://store\.example/v1/me\? .* begins: '<h1>Not Found"
    with pytest.raises(NotFound, match=said):
        await client.ask(client.make_answered(elsewhere).me)


async def test_a_question_is_narrowed_step_by_step(client: Client) -> None:
    recorded = Recorded([page_of(1, 2), page_of(3, 4, next="a"), page_of(5), page_of(1)])
    inferences = client.make_answered(recorded).model("m").inferences(meta.n > 1)
    narrowed = inferences.filter(meta.n < 9).sort("-n")
    assert [item.inference_id for item in await client.ask(narrowed.head)] == ["frame-1", "frame-2"]
    taken = await client.list(narrowed.limit(3).stream)
    assert [item.inference_id for item in taken] == ["frame-3", "frame-4", "frame-5"]
    assert len(await client.list(inferences.sample(7, seed=2).stream)) == 1
    bodies = [json.loads(request.content) for request in recorded.requests]
    assert [body.get("limit") for body in bodies] == [5, 3, 1, None]
    assert [body.get("sort") for body in bodies] == ["-n", "-n", "-n", None]
    assert bodies[0]["filter"]["op"] == "and"
    assert bodies[3]["sample"] == {"size": 7, "seed": 2}
    texts = client.make_answered(recorded).model("m").inferences("a > 1 OR b").filter("c")
    assert "(a > 1 OR b) AND (c)" in repr(texts)
    with pytest.raises(package.FilterError, match="in one form"):
        texts.filter(meta.n > 1)
    with pytest.raises(SettingsError, match="at least 1"):
        narrowed.limit(0)
    with pytest.raises(SettingsError, match="filter before"):
        narrowed.limit(5).filter("ok")


async def test_a_limit_counts(client: Client) -> None:
    """A few are read, so that nothing counts the others; many are counted."""
    recorded = Recorded([page_of(1, 2, next="a"), page_of(3), page_of(4), answer(_COUNT)])
    inferences = client.make_answered(recorded).model("m").inferences()
    assert await client.ask(inferences.sort("-n").limit(3).count) == 3
    assert await client.ask(inferences.sample(50, seed=2).count) == 1
    bodies = [json.loads(request.content) for request in recorded.requests]
    assert [body["limit"] for body in bodies] == [3, 1, 50]
    assert all(body["sort"] == "-received_at" for body in bodies)
    assert all((body["include"], body["fields"]) == ([], ["uid"]) for body in bodies)
    assert await client.ask(inferences.limit(2_000).count) == 17
    assert recorded.requests[-1].url.path.endswith("/count")


async def test_measures_are_rows(client: Client) -> None:
    groups = [{"key": {"ok": True}, "measures": {"count": 2, "score": 0.5}}]
    body = {"groups": groups, "approximate": False, "warnings": ["odd"]}
    left_out = {"groups": 3, "inferences": 40}
    recorded = Recorded([answer(body | {"others": left_out})] * 2)
    inferences = client.make_answered(recorded).model("m").inferences("ok", since="1h")
    grouped = inferences.group_by("ok", every="hour", order="-count", limit=1)
    with pytest.warns(package.StoreWarning, match="odd|3 groups with 40 inferences left out"):
        rows = await client.ask(lambda: grouped.aggregate("count", score="mean( top_score )"))
    assert rows == [{"ok": True, "count": 2, "score": Decimal("0.5")}]
    assert repr(rows).splitlines() == ["ok    count  score", "true  2      0.5"]
    assert "<td>true</td>" in rows._repr_html_()
    sent = json.loads(recorded.requests[0].content)
    assert datetime.fromisoformat(sent.pop("received_at")["from"]) < datetime.now(UTC)
    assert sent == {
        "filter": "ok",
        "filter_lang": "cql2-text",
        "measures": [
            {"function": "count"},
            {"function": "mean", "of": "top_score", "as": "score"},
        ],
        "group_by": ["ok", {"time": "hour"}],
        "order": "-count",
        "limit": 1,
    }
    with pytest.warns(package.StoreWarning):
        assert await client.ask(inferences.aggregate) == rows[0]
    for wrong in (lambda: inferences.aggregate("mean of x"), inferences.limit(5).aggregate):
        with pytest.raises(SettingsError):
            await client.ask(wrong)
    # groups of a name with a dot
    key = {"metadata.site": "north", "metadata": {"site": "of another"}}
    group = {"key": key, "measures": {"mean(prediction.score)": 0.5}}
    none_left_out = {"groups": 0, "inferences": 0}
    more = {"groups": [group], "others": none_left_out, "warnings": []}
    recorded = Recorded([answer(body | more)])
    grouped = client.make_answered(recorded).model("m").inferences().group_by("metadata.site")
    rows = await client.ask(lambda: grouped.aggregate("mean(prediction.score)"))
    columns = ["metadata.site", "mean(prediction.score)"]
    assert [tables.pick(rows[0], column) for column in columns] == ["north", "0.5"]
    assert "<td>north</td>" in rows._repr_html_()


async def test_lists_show_themselves(client: Client) -> None:
    item: dict[str, Any] = dict.fromkeys(each.name for each in fields(Registration))
    item |= dict.fromkeys(("registered_at", "updated_at"), "2026-11-01T00:00:00Z")
    item |= {"model_id": "m", "name": "<b>", "class_labels": ["a"], "registered_by": "key:a"}
    item["revision"] = 1
    items = [item, item | {"model_id": "n", "output_mapping": {"boxes": "b"}}]
    moved = {"pending_move": {"from_project_id": None, "effective_at": "2026-11-01T00:00:00Z"}}
    bare = dict.fromkeys(("project_id", "name", "task_type")) | moved
    lists = [answer({"items": each, "next": None}) for each in ([item | bare, item], items)]
    recorded = Recorded([*lists, page_of(1)])
    store = client.make_answered(recorded)
    moving = await client.ask(store.models)
    assert "pending_move" not in repr(moving)
    models = await client.ask(store.models)
    assert [model.model_id for model in models] == ["m", "n"]
    head, row, _ = repr(models).splitlines()
    assert head.split()[:2] == ["model_id", "name"]
    assert row.split()[:2] == ["m", "<b>"]
    assert "&lt;b&gt;" in models._repr_html_()
    inferences = await client.ask(store.model("m").inferences().head)
    assert repr(inferences).split()[0] == "inference_id"
    assert repr(package.Rows()) == "[]"


def test_the_length_of_a_question_is_its_count() -> None:
    recorded = Recorded([])
    inferences = Client("sync").make_answered(recorded).model("m").inferences()
    assert inferences  # a question is true, and asks nothing for that
    recorded.answers.append(answer(_COUNT))
    assert len(inferences) == 17
    recorded.answers += [page_of(1, 2, next="a") for _ in range(3)]
    assert len(inferences.limit(2)) == 2
    assert len(list(inferences.limit(2))) == 2
    paths = [request.url.path.rpartition("/")[2] for request in recorded.requests]
    assert paths == ["count", "query", "query", "query"]


async def test_retry_after_is_honoured(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    for module, real, function in (("sync", time, waits.append), ("asynchronous", asyncio, sleep)):
        fake = SimpleNamespace(**vars(real) | {"sleep": function})
        monkeypatch.setattr(f"inference_store_client.{module}.{real.__name__}", fake)
    recorded = Recorded([make_problem(429, **{"Retry-After": "50"}), answer(_COUNT)])
    assert await client.ask(ask_count(client.make_answered(recorded))) == 17
    assert waits == [50]
    refused = Recorded([make_problem(503, **{"Retry-After": "3600"})])
    with pytest.raises(Unavailable):
        await client.ask(ask_count(client.make_answered(refused)))


async def test_a_refusal_is_raised_at_once_and_a_change_never_sent_again(client: Client) -> None:
    cases: list[tuple[httpx.Response, type[StoreError]]] = [
        (make_problem(422), InvalidRequest),
        (make_problem(403), Forbidden),
        (make_problem(404), NotFound),
        (make_problem(503, "query-timeout"), Unavailable),
        (make_problem(500), package.Refused),
    ]
    for refusal, error in cases:
        with pytest.raises(error, match="unknown key") as raised:
            await client.ask(ask_count(client.make_answered(Recorded([refusal]))))
        assert "frame_number" in str(raised.value)
    changes: list[tuple[httpx.Response | Exception, type[StoreError]]] = [
        (make_problem(503), Unavailable),
        (httpx.ReadError("cut"), ConnectionFailed),
    ]
    for (method, path), (trouble, error) in product(_CHANGES, changes):
        recorded = Recorded([trouble])
        store = client.make_answered(recorded)
        with pytest.raises(error):
            await client.ask(partial(store.request, method, path, body={}))
        assert len(recorded.requests) == 1, (method, trouble)


async def test_any_route_is_asked_with_exact_numbers(client: Client) -> None:
    recorded = Recorded(
        [httpx.Response(200, text='{"a": 0.1000000000000000000001}'), httpx.Response(204)]
    )
    store = client.make_answered(recorded)
    answered = await client.ask(
        lambda: store.request("get", "/v1/holds", params={"limit": 5}, body=None)
    )
    assert str(answered["a"]) == "0.1000000000000000000001"
    assert await client.ask(lambda: store.request("DELETE", "/v1/views/1")) is None
    assert str(recorded.requests[0].url) == "https://store.example/v1/holds?limit=5"
    with pytest.raises(SettingsError, match="/v1"):
        await client.ask(lambda: store.request("GET", "https://other.example/v1/me"))


async def test_a_key_stays_at_its_origin(client: Client) -> None:
    """Neither a link nor a redirect carries a key elsewhere, nor what else the client sends."""
    links = {"data": "https://bucket.example/x?signature=1", "response": None, "metadata": None}
    jpeg = httpx.Response(200, content=b"jpeg", headers={"Content-Type": "image/jpeg"})
    expired = httpx.Response(403, text="<Error>expired</Error>")
    recorded = Recorded([answer(make_item(1, urls=links)), jpeg, expired, jpeg])
    store = client.make_answered(recorded, _KEY)
    inference = await client.ask(lambda: store.model("m").inference("frame-1"))
    assert (await client.ask(inference.image)).content == b"jpeg"
    link = recorded.requests[1]
    assert str(link.url) == links["data"]
    assert "authorization" not in link.headers
    assert _KEY not in str(link.headers.raw)
    blob = await client.ask(inference.data)
    assert (blob.content, blob.content_type) == (b"jpeg", "image/jpeg")
    path = recorded.requests[3].url.raw_path.decode()
    assert path == f"{_PATH}/uid%3A{inference.uid}/data"
    assert recorded.requests[3].headers["authorization"] == f"Bearer {_KEY}"


async def test_redirects(client: Client) -> None:
    within = httpx.Response(307, headers={"Location": "/v1/elsewhere"})
    recorded = Recorded([within, answer(_COUNT)])
    assert await client.ask(ask_count(client.make_answered(recorded, _KEY))) == 17
    assert recorded.requests[1].headers["authorization"] == f"Bearer {_KEY}"
    assert recorded.requests[1].content == recorded.requests[0].content
    for location in ("https://evil.example/v1", "http://store.example/v1", "//evil.example"):
        away = Recorded([httpx.Response(307, headers={"Location": location})])
        with pytest.raises(Redirected, match="another origin"):
            await client.ask(ask_count(client.make_answered(away, _KEY)))
        assert len(away.requests) == 1
    changed = Recorded([httpx.Response(303, headers={"Location": "/v1/elsewhere"})])
    with pytest.raises(Redirected):
        await client.ask(ask_count(client.make_answered(changed)))
    for_ever = Recorded([httpx.Response(307, headers={"Location": "/v1/x"})] * 6)
    with pytest.raises(Redirected, match="more than 5"):
        await client.ask(ask_count(client.make_answered(for_ever)))


async def test_no_answer_of_the_api_is_an_error(client: Client, subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, str | None]] = [
        (b"<html>Sign in to the network</html>", "not JSON.* begins: '<html>Sign in to the net"),
        (b"", "not JSON.* begins: ''"),
        (b'{"actor": "key:a", "rights": [', "the answer is cut off or damaged: "),
        (b"[" * 100_000, "the answer is cut off or damaged: "),
        (b"[]", None),
        (b'{"count": "many", "warnings": []}', None),
        (b"{}", None),
    ]
    for content, said in cases:
        store = client.make_answered(Recorded([httpx.Response(200, content=content)]))
        with subtests.test(str(content[:20])), pytest.raises(UnexpectedAnswer, match=said):
            await client.ask(ask_count(store))
    html = {"Content-Type": "text/html; charset=utf-8"}
    page = httpx.Response(200, content=b"<html>Sign in</html>", headers=html)
    recorded = Recorded([page, page])
    inferences = client.make_answered(recorded).model("m").inferences()
    shown = r"a page of HTML\..* begins: '<html>Sign in"
    with pytest.raises(UnexpectedAnswer, match=shown):
        await client.list(inferences.stream)
    with pytest.raises(UnexpectedAnswer, match=shown):
        await client.ask(inferences.to_arrow)
    assert not recorded.answers


def test_both_have_the_same_methods_and_help() -> None:
    for kind_name in ("Export", "Groups", "Inference", "Inferences", "Model", "Store"):
        blocking, other = (getattr(package, prefix + kind_name) for prefix in ("", "Async"))
        assert list_signatures(blocking) == list_signatures(other), kind_name
        assert blocking.__doc__ == other.__doc__, kind_name
    for kind in (package.Inferences, package.AsyncInferences):
        assert str(inspect.signature(kind.count)) == "(self) -> int"
        assert inspect.getdoc(kind.count) == "Count the matches, exactly."
    assert str(inspect.signature(Inferences.stream)).endswith(
        "-> collections.abc.Iterator[~InferenceT]"
    )


def list_signatures(kind: Any) -> dict[str, str]:
    """Return the public members of a class, each with its signature if it is a method."""
    members = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {
        name: str(inspect.signature(member)).replace(".AsyncIt", ".It") if callable(member) else ""
        for name, member in members.items()
    }


async def check_types(inferences: Inferences, others: AsyncInferences) -> None:
    """What a type checker sees, which nothing runs."""
    assert_type(inferences.count(), int)
    assert_type(await others.count(), int)
    assert_type(inferences.first(), Inference | None)
    assert_type(await others.first(), AsyncInference | None)
    assert_type(inferences.pages(size=5), Iterator[Page[Inference]])
    assert_type(others.pages(size=5), AsyncIterator[Page[AsyncInference]])
    assert_type(inferences.export(confirm=True).refresh(), Export)
    assert_type(await others.export("csv"), AsyncExport)
    assert_type(Store().model("m").inferences(), Inferences)
    assert_type(AsyncStore().model("m").inferences(), AsyncInferences)
    assert_type(inferences.filter("ok").sort("-top_score").limit(5), Inferences)
    assert_type(others.sample(5), AsyncInferences)
    assert_type(inferences.head(), Rows[Inference])
    assert_type(inferences.group_by("ok").aggregate("count"), Rows[dict[str, Any]])
    assert_type(await others.group_by("ok").aggregate(), Rows[dict[str, Any]])
    assert_type(Store().models(), Rows[Registration])
    inferences.sample()  # type: ignore[call-arg]
    inferences.count("more")  # type: ignore[call-arg]
    inferences.pages(size="5")  # type: ignore[arg-type]


_NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


def test_retry_after_is_seconds_or_a_date() -> None:
    for text, seconds in [
        ("", 0),
        ("7", 7),
        (" 120 ", 120),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("Thu, 26 Nov 2026 12:00:30 GMT", 30),
        ("Thu, 26 Nov 2026 11:00:00 GMT", 0),
        (f"Thu, 26 Nov 2026 12:00:30 +{10**20}", 0),
    ]:
        assert read_retry_after(text, now=_NOW) == seconds, text


def test_waits_grow_to_a_bound_and_are_shortened_at_random() -> None:
    retries = Retries(attempts=9, first_wait_seconds=1, longest_wait_seconds=20)
    failure = ConnectionFailed("cut")
    for attempt, most in enumerate([1, 2, 4, 8, 16, 20, 20, 20], start=1):
        wait = retries.find_wait(failure, attempt)
        assert wait is not None
        assert most / 2 <= wait <= most, attempt
    assert retries.find_wait(failure, 9) is None
    # far beyond what a float can be doubled
    assert (Retries(attempts=10_000).find_wait(failure, 5_000) or 99) <= 30
