"""Replays over HTTP, without a proxy that answers; and what erasures take of them."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from inference_store.index import registrations
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.unsettled import Record
from inference_store.inference.stored_requests import ReplayMark
from inference_store.ingester.arrivals import sort_out
from inference_store.ingester.batch import ReadRecord
from tests.integration.stored_inferences import NewInference, at, make_indexable

from .conftest import Api, MakeApp, make_client
from .people import erase, place_hold, release_hold

_R = "/v1/models/model/replays"
RECORD = Record(PartitionId("default", "t", 0, 0), 1, datetime.now(UTC), b"k", b"", ())


@pytest.fixture
async def api(make_app: MakeApp) -> AsyncIterator[Api]:
    """An api with two models, whose replays go to a proxy that is not there."""
    async with make_client(make_app(replay_proxy="http://127.0.0.1:9")) as client:
        request = {"method": "POST", "path": "/v2/models/model/infer", "query": "", "headers": []}
        blob = json.dumps({"metadata": [], "request": {**request, "messages": [["{}"]]}})
        metadata = client.put_blob("metadata", blob.encode())
        names = ("one", "two", "three")
        await client.store(
            *(
                NewInference(name, at(n), [("n", "int", n)], keys=(None, None, metadata))
                for n, name in enumerate(names)
            ),
            NewInference("bare", at(9)),
            # it is not sent again
            NewInference(ReplayMark(UUID(int=1), UUID(int=2)).inference_id, at(10)),
        )
        await client.store(NewInference("else", at(1), model_id="other"))
        yield client


async def request_replay(api: Api, **body: Any) -> str:
    replay = await api.ask(_R, {"to": {"model": "other"}, **body}, status=202)
    assert replay["state"] == "pending"
    return f"{_R}/{replay['id']}"


async def test_counts_what_is_not_sent_and_waits_for_the_proxy(api: Api) -> None:
    for body, status in (
        ({"to": {"model": "nobody"}}, 404),
        ({"to": {"model": "other"}, "sample": 0}, 422),
        ({"to": {"model": "other"}, "most": 100_001}, 422),
        ({"to": {"model": "other"}, "filter": "nobody = 1"}, 422),
        ({}, 422),
    ):
        await api.ask(_R, body, status=status)
    path = await request_replay(api)
    bare = await request_replay(api, filter="n IS NULL", sample=1, most=1)
    await api.run_retention()
    waiting = await api.read(path)
    assert waiting["state"] == "sending"
    assert "http://127.0.0.1:9 cannot be reached" in waiting["error"]
    assert waiting["counts"] == {
        **{"listed": 3, "waiting": 0, "compared": 0, "missing": 0, "skipped": 1, "gone": 0},
        **{"cancelled": 0, "reasons": {"input_gone": 1}},
    }
    sent = "UPDATE replay_item SET state = '{}' WHERE uid = (SELECT uid FROM inference WHERE {})"
    await api.execute(sent.format("waiting", "inference_id = 'two'"))
    other = """compared', difference = '{"version": {"other": true}}"""
    await api.execute(sent.format(other, "inference_id = 'one'"))
    done = await api.read(bare)
    assert (done["state"], done["inferences"], done["counts"]["skipped"]) == ("done", 1, 1)
    [item] = (await api.read(f"{bare}/differences", state="skipped"))["items"]
    assert (item["state"], item["reason"]) == ("skipped", "input_gone")
    assert (await api.read(f"{bare}/differences"))["items"] == []
    await api.read(f"{bare}/differences", status=422, cursor="x")
    await api.read(path.replace("/model/", "/other/"), status=404)
    await api.read(f"/v1/exports/{done['id']}", status=404)
    assert (await api.read("/v1/exports"))["items"] == []

    assert (await api.ask(f"{path}/cancel", None, status=202))["state"] == "cancelling"
    await api.ask(f"{path}/restart", None, status=409)
    await api.run_retention()
    ended = await api.read(path)
    assert (ended["state"], ended["summary"]["versions"]) == ("cancelled", 1)
    assert ended["counts"] == waiting["counts"] | {"listed": 0, "compared": 1, "cancelled": 2}
    await api.ask(f"{path}/cancel", None, status=409)
    again = await api.ask(f"{bare}/restart", None, status=202)
    listed = (await api.read(_R))["items"]
    assert [each["state"] for each in listed] == ["pending", "done", "cancelled"]
    assert (listed[0]["id"], listed[0]["filter"]) == (again["id"], "n IS NULL")
    actions = [entry["action"] for entry in (await api.read("/v1/audit"))["items"]]
    assert actions.count("replay_requested") == 3
    assert actions.count("replay_cancelled") == 1


async def find_uids(api: Api, model: str = "model") -> dict[str, UUID]:
    question = {"limit": 100}
    page = await api.ask(f"/v1/models/{model}/inferences/query", question)
    return {item["inference_id"]: UUID(item["uid"]) for item in page["items"]}


def make_replay(job: str, of: UUID, inference_id: str = "") -> NewInference:
    mark = ReplayMark(UUID(job.rpartition("/")[2]), of)
    metadata = [(name, "string", value) for name, value in mark.metadata.items()]
    name = inference_id or mark.inference_id
    return NewInference(name, at(100), metadata, model_id="other")


async def arrive(api: Api, *replays: NewInference) -> list[Outcome]:
    """Return what becomes of replays that arrive, of those that are not stored."""
    async with api.engine.begin() as connection:
        registered = (await registrations.find_by_ids(connection, ["other"]))["other"]
        reads = [ReadRecord(RECORD, make_indexable(each, registered)) for each in replays]
        return [outcome for _, outcome in (await sort_out(connection, reads)).settled]


async def test_an_erasure_takes_replays_that_are_stored_and_that_are_to_come(api: Api) -> None:
    uids = await find_uids(api)
    job, other = await request_replay(api), "00000000-0000-4000-8000-000000000007"
    await api.run_retention()
    await api.execute("UPDATE replay_item SET state = 'waiting' WHERE state = 'listed'")
    one, coming = make_replay(job, uids["one"]), make_replay(job, uids["two"])
    # of a job that nobody knows any more; a replay of that one; and what only claims to be one
    unknown = make_replay(other, uids["two"])
    await api.store(one, unknown, make_replay(job, uids["two"], "forged"))
    chained = make_replay(other, unknown.uid)
    await api.store(chained)
    hold = await place_hold(api, f"replay_of = '{uids['two']}'", model_id="other")

    erasure = await erase(api, {"inference_ids": ["two"]})
    assert erasure["state"] == "partly_held"
    assert await arrive(api, coming, make_replay(job, uids["three"])) == [Outcome.ERASED_AGAIN]
    await release_hold(api, hold)
    await api.run_retention()
    erased = await api.read(f"/v1/erasures/{erasure['id']}")
    assert (erased["state"], erased["inferences"]) == ("deleted", 3)
    assert (await find_uids(api, "other")).keys() == {"else", "forged", one.inference_id}
    # it is remembered although nothing of the original is left
    assert await arrive(api, coming) == [Outcome.ERASED_AGAIN]
    counts = (await api.read(job))["counts"]
    assert (counts["waiting"], counts["gone"]) == (2, 1)


async def test_what_says_that_it_is_a_replay_cannot_be_edited(api: Api) -> None:
    uids = await find_uids(api)
    replay = make_replay("00000000-0000-4000-8000-000000000007", uids["one"])
    await api.store(replay)
    path = f"/v1/models/other/inferences/{replay.inference_id}/metadata"
    await api.ask(path, {"remove": ["replay_of"]}, status=422)
    item = {"key": "replay_of", "type": "string", "value": str(uids["two"])}
    await api.ask(path, {"metadata": [item]}, status=422)
