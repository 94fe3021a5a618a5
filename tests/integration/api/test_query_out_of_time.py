"""Queries that run out of time, queries beyond a caller's share, and the largest filters."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from sqlalchemy import Select, select

from inference_store.api import queries
from inference_store.api.http import read_in_thread
from inference_store.index.tables import inference, metadata_number
from inference_store.platform.metrics import QUERY_TIMEOUTS
from inference_store.query import deadline
from inference_store.query.deadline import OutOfTime, build_statement
from tests.integration.query.held_partition import hold_partition, hold_partition_until_late
from tests.integration.stored_inferences import NewInference, at
from tests.polling import until
from tests.settings import TOKEN
from tests.stopped_clock import StoppedClock

from .conftest import LINES, OWNER, Api, MakeApp, make_client

_PATH = "/v1/models/model/inferences"
_QUERY = f"{_PATH}/query"
_DAY = 86_400
_DAYS = 20
_HELD_DAY = 9
_BODY: dict[str, Any] = {"metadata_filter": [{"key": "n", "operator": "gte", "value": 6}]}
_FOUND = [f"id-{n}" for n in range(59, 5, -1)]


@pytest.fixture
async def stored(api: Api) -> None:
    """Store three inferences a day, each day in its own partition."""
    person = [("person", 0.5)]
    await api.store(
        *(
            NewInference(f"id-{n}", at(n * _DAY / 3), [("n", "int", str(n))], person)
            for n in range(3 * _DAYS)
        )
    )


async def _read_page(api: Api, cursor: str | None = None, **more: float) -> dict[str, Any]:
    return dict(await api.ask(_QUERY, {**_BODY, "limit": 1000, "cursor": cursor, **more}))


def _list_ids(page: dict[str, Any]) -> list[str]:
    return [item["inference_id"] for item in page["items"]]


def _count_timeouts() -> float:
    [metric] = QUERY_TIMEOUTS.collect()
    return sum(sample.value for sample in metric.samples if sample.name.endswith("_total"))


@pytest.mark.usefixtures("stored")
async def test_cursor_continues_after_a_timeout(api: Api) -> None:
    async with hold_partition_until_late(api.engine, metadata_number, at(_HELD_DAY * _DAY)) as span:
        first = await _read_page(api)
    assert _list_ids(first) == [f"id-{n}" for n in range(59, 3 * (_HELD_DAY + 1) - 1, -1)]
    assert first["searched_back_to"] == span.hi.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    rest = await _read_page(api, first["next"])
    assert _list_ids(first) + _list_ids(rest) == _FOUND
    assert (rest["next"], rest["searched_back_to"]) == (None, None)
    async with hold_partition_until_late(api.engine, inference, at((_DAYS - 1) * _DAY)):
        nothing = await api.ask(_QUERY, {}, status=503)
    assert nothing["type"] == "/docs/errors#query-timeout"


@pytest.mark.usefixtures("stored")
async def test_page_ends_early_with_partial_results(make_app: MakeApp) -> None:
    before = _count_timeouts()
    async with make_client(make_app(page_seconds=0.000_001)) as api:
        pages = [await _read_page(api)]
        while (cursor := pages[-1]["next"]) is not None:
            assert pages[-1]["searched_back_to"] is not None
            pages.append(await _read_page(api, cursor))
        assert 2 < len(pages) <= _DAYS + 1
        assert [id for page in pages for id in _list_ids(page)] == _FOUND
        # a request with a timeout waits that long, and so does a stream with all of its pages
        patient = await _read_page(api, timeout_seconds=300)
        assert (_list_ids(patient), patient["next"]) == (_FOUND, None)
        streamed = await api.post(_QUERY, json=_BODY, headers=LINES)
        lines = [json.loads(line) for line in streamed.text.splitlines()]
        assert [line.get("inference_id") for line in lines[:-1]] == _FOUND
        assert (await api.ask(f"{_PATH}/count", _BODY))["count"] == len(_FOUND)
    # none of these counts as a timeout
    assert _count_timeouts() == before


async def test_sorted_page_contains_all_values_found_in_time(api: Api, make_app: MakeApp) -> None:
    """Time runs out among the inferences without a value, and the cursor continues there.

    It does not end early, since it cannot report its progress: values may be in any partition.
    """
    person = [("person", 0.5)]
    await api.store(
        *(
            NewInference(f"id-{n}", at(n * _DAY), [("n", "int", n)] if n < 5 else (), person)
            for n in range(_DAYS)
        )
    )
    body = {"sort": "-n", "limit": 1000}
    with_value = [f"id-{n}" for n in range(4, -1, -1)]
    without = [f"id-{n}" for n in range(_DAYS - 1, 4, -1)]
    async with hold_partition_until_late(api.engine, inference, at(_HELD_DAY * _DAY)):
        first = await api.ask(_QUERY, body)
    assert _list_ids(first) == with_value
    rest = await api.ask(_QUERY, body | {"cursor": first["next"]})
    assert (_list_ids(rest), rest["next"]) == (without, None)
    async with make_client(make_app(page_seconds=0.001)) as hurried:
        page = await hurried.ask(_QUERY, body | {"prediction": {"label": "person"}})
    assert (_list_ids(page), page["next"]) == (with_value + without, None)


@pytest.mark.usefixtures("stored")
async def test_busy_api_is_not_a_query_timeout(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks keep the api busy until the time is over; the query is not to blame."""
    before = _count_timeouts()
    for what, more in (
        ("query", {"sort": "n"}),
        ("count", {}),
        ("aggregate", {"measures": [{"function": "count"}]}),
    ):
        clock = StoppedClock()
        monkeypatch.setattr(deadline, "time", clock)
        busy = asyncio.create_task(_keep_busy(clock))
        try:
            answer = await api.post(f"{_PATH}/{what}", json=_BODY | more)
        finally:
            busy.cancel()
        assert (answer.status_code, answer.json()["type"]) == (503, "/docs/errors#busy"), what
        assert int(answer.headers["Retry-After"]) > 0, what
    assert _count_timeouts() == before


async def test_estimates_a_count_that_takes_too_long(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few inferences are all tested, and the number is exact; of many a sample stands for all."""
    everything, half = 400, {"filter": "MOD = 0", "estimate": True}
    await api.store(
        *(NewInference(f"id-{n}", at(0), [("MOD", "int", n % 2)]) for n in range(everything))
    )
    for path in (f"{_PATH}/count", "/v1/inferences/count"):
        assert await api.ask(path, half) == {"count": everything // 2, "warnings": []}
        with monkeypatch.context() as hurried:
            hurried.setattr(queries, "_BEFORE_ESTIMATE_SECONDS", 0)
            about = await api.ask(path, half)
            assert 0 < about["margin"] < everything
            assert abs(about["count"] - everything // 2) <= 3 * about["margin"]
            before = {"received_at": {"to": "2000-01-01T00:00:00Z"}}
            assert await api.ask(path, half | before) == {"count": 0, "warnings": []}


async def _keep_busy(clock: StoppedClock) -> None:
    """Block every other task of the loop for longer than a query may take, again and again."""
    while True:
        clock.now += 600
        clock.busy += 600
        await asyncio.sleep(0)


async def _create_key(client: Api) -> dict[str, str]:
    body = {"name": "x", "grants": [{"role": "owner"}]}
    created = await client.ask("/v1/keys", body, status=201, headers=OWNER)
    return {"Authorization": f"Bearer {created['key']}"}


@pytest.mark.usefixtures("stored")
async def test_heavy_queries_of_one_caller_do_not_delay_others(make_app: MakeApp) -> None:
    app = make_app(auth="on", api_token=TOKEN, query_wait_seconds=0.5)
    async with make_client(app) as client:
        heavy, other = await _create_key(client), await _create_key(client)

        async def count(headers: dict[str, str], body: Any) -> httpx.Response:
            return await client.post(f"{_PATH}/count", json=body, headers=headers)

        async with hold_partition(client.engine, metadata_number, at(0)):
            # Twelve queries that wait for a lock: one caller may use three of a pool of ten.
            tasks = [asyncio.create_task(count(heavy, _BODY)) for _ in range(12)]

            async def list_refused() -> list[httpx.Response]:
                return [task.result() for task in tasks if task.done()]

            answers = await until(list_refused, lambda refusals: len(refusals) == 9)
            assert {answer.status_code for answer in answers} == {429}
            assert {answer.headers["retry-after"] for answer in answers} == {"1"}
            types = {answer.json()["type"] for answer in answers}
            assert types == {"/docs/errors#too-many-queries"}
            # Queries and writes of another caller, and look-ups of both.
            assert (await count(other, {})).json()["count"] == 3 * _DAYS
            page = await client.ask(_QUERY, {"limit": 1}, headers=other)
            assert len(page["items"]) == 1
            for who in (heavy, other):
                await client.call("GET", f"{_PATH}/id-1", status=200, headers=who)
                await client.call("PUT", "/v1/models/model", {}, status=200, headers=who)
            assert not any(task.done() and task.result().status_code == 200 for task in tasks)
        finished = [await task for task in tasks]
        assert sorted(answer.status_code for answer in finished) == [200] * 3 + [429] * 9


@pytest.mark.usefixtures("stored")
async def test_short_burst_waits_and_succeeds(make_app: MakeApp) -> None:
    async with make_client(make_app(postgres_pool_size=1, query_timeout_seconds=1500)) as client:
        requests = [client.post(f"{_PATH}/count", json=_BODY) for _ in range(25)]
        answers = await asyncio.gather(*requests)
    assert {answer.status_code for answer in answers} == {200}


async def test_query_may_set_a_shorter_timeout(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "time", StoppedClock())  # Postgres alone measures it
    async with make_client(make_app(query_timeout_seconds=600)) as client:
        await client.store(NewInference("one", at(0), [("n", "int", "6")]))
        async with hold_partition(client.engine, metadata_number, at(0)):
            for path in ("count", "query"):
                body = _BODY | {"timeout_seconds": 0.3}
                problem = await client.ask(f"{_PATH}/{path}", body, status=503)
                assert problem["type"] == "/docs/errors#query-timeout"
        for seconds in (601, 0.01, -1, "1"):
            problem = await client.ask(_QUERY, {"timeout_seconds": seconds}, status=422)
            assert problem["errors"][0]["path"] == "timeout_seconds", seconds
        await client.read(_PATH, timeout_seconds="500")


@pytest.mark.usefixtures("stored")
async def test_large_filters_do_not_keep_the_loop_busy(api: Api) -> None:
    """They are read and built in threads: while these are taken, other requests are answered."""
    large = " AND ".join(f"n <> {k + 500}" for k in range(500))
    let_go, begun = threading.Event(), threading.Event()
    taken = asyncio.create_task(read_in_thread(let_go.wait, 60))
    reading = asyncio.create_task(api.post(_QUERY, json={"filter": f"{large} AND"}))
    for _ in range(5):
        assert await api.find_ids(limit=1) == ["id-59"]
    assert not reading.done()
    let_go.set()
    assert ((await reading).status_code, await taken) == (422, True)
    let_go.clear()

    def build() -> Select[tuple[int]]:
        begun.set()
        let_go.wait(60)
        return select(1)

    async with api.engine.connect() as connection:
        late = asyncio.create_task(build_statement(connection, build, 0, large=True))
        await asyncio.sleep(0)  # it is submitted, and its time is over with the next turn
        begun.wait()  # the loop stands still until then
        with pytest.raises(OutOfTime) as raised:
            await late
        assert type(raised.value) is OutOfTime
    for what, more in (
        ("query", {"sort": "n"}),
        ("count", {}),
        ("aggregate", {"measures": [{"function": "count"}]}),
    ):
        body = {"filter": large, "timeout_seconds": 1} | more
        answer = await api.ask(f"{_PATH}/{what}", body, status=503)
        assert answer["type"] == "/docs/errors#busy", what
        assert await api.find_ids(limit=1) == ["id-59"]
    let_go.set()
    assert (await api.ask(f"{_PATH}/count", {"filter": large}))["count"] == 60
