"""An erasure of a subject over everything reaches quarantined events of no registered model."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import dead_letters, parked, registrations
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Rejection
from inference_store.index.tables import kafka_partition
from inference_store.platform.metrics import RETENTION_TROUBLE
from tests.builders import NOW, make_payload
from tests.integration.retention.holding import place_hold, release_hold

from .test_erased_asides import encode_metadata, list_parked, read_letters
from .test_erasures import (
    ERASURES,
    RunRetention,
    read_erasure,
    request_erasure,
    run_retention,
    stored,
)

__all__ = ["run_retention", "stored"]
pytestmark = pytest.mark.usefixtures("unattributed")
_PARTITION = PartitionId("default", "inference-events", 0, 0)
_SCHEDULE = parked.Schedule(*(3 * [NOW - NOW]))
_BROKEN = b'{"model_id":"%s","metadata":[{"key":"person","value":"%s"}],"data_sto'
_ACROSS = "/v1/erasures"
_SUBJECT = {"subject": {"key": "person", "value": "ann"}}
# offset → the model of its row, and its bytes
_LETTERS: dict[int, tuple[str | None, bytes]] = {
    0: (None, _BROKEN % (b"model", b"ann")),
    1: (None, _BROKEN % (b"model", b"bob")),
    2: (None, _BROKEN % (b"mod", b"ann")),
    3: ("stranger", _BROKEN % (b"stranger", b"ann")),
    4: ("stranger", make_payload(model_id="stranger", metadata=encode_metadata("ann").decode())),
    5: ("stranger", make_payload(model_id="stranger", metadata=encode_metadata("bob").decode())),
}
_PARKED = {6: "ann", 7: "bob"}
# all that mention ann
_ALL = {0, 2, 3, 4, 6}


def make_record(offset: int, model_id: str | None, payload: bytes) -> tuple[Record, Rejection]:
    rejection = Rejection("not_json", "broken", model_id, None)
    return Record(_PARTITION, offset, NOW, b"key", payload, ()), rejection


@pytest.fixture
async def unattributed(engine: AsyncEngine) -> None:
    """Letters without a model or of one that is not registered, and parked events of the latter."""
    letters = [make_record(offset, *letter) for offset, letter in _LETTERS.items()]
    events = [
        (*make_record(offset, "stranger", _BROKEN % (b"stranger", who.encode())), "s3://b/nowhere")
        for offset, who in _PARKED.items()
    ]
    async with engine.begin() as connection:
        await open_partition(connection, _PARTITION, first=0, began="earliest")
        await dead_letters.add(connection, letters)
        await parked.add(connection, events, _SCHEDULE)
        counts = kafka_partition.update().values(next=8, dead=len(letters), parked=len(events))
        await connection.execute(counts)


async def list_erased(engine: AsyncEngine) -> set[int]:
    """Return the offsets of letters that are discarded and empty, and of parked events gone."""
    letters = await read_letters(engine)
    gone = {offset for offset, state in letters.items() if state == ("discarded", False)}
    return gone | (set(_PARKED) - await list_parked(engine))


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("path", "body", "gone"),
    [
        (_ACROSS, {}, _ALL),
        # of given models: only letters without a model whose bytes name one of them
        (_ACROSS, {"model_ids": ["model", "other"]}, {0}),
        (ERASURES, {}, {0}),
        ("/v1/models/other/erasures", {}, set()),
    ],
    ids=str,
)
async def test_reaches_events_of_no_registered_model(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    run_retention: RunRetention,
    path: str,
    body: dict[str, Any],
    gone: set[int],
) -> None:
    dry = (await client.post(path, json={**_SUBJECT, **body, "dry_run": True})).json()
    counted = (len(gone - set(_PARKED)), len(gone & set(_PARKED)))
    assert (dry["dead_letters"], dry["parked_events"]) == counted
    # they are of no model of the list
    assert all(model["dead_letters"] == 0 for model in dry["models"])
    erasure = await request_erasure(client, {**_SUBJECT, **body}, path)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert erasure["state"] == "deleted", erasure
    rows = erasure["rows"]
    assert (rows.get("dead_letter", 0), rows.get("parked_event", 0)) == counted
    assert await list_erased(engine) == gone


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("model_id", "kept"), [(None, _ALL), ("other", {0, 2}), ("stranger", _ALL)]
)
async def test_holds_keep_what_may_be_theirs(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    run_retention: RunRetention,
    model_id: str | None,
    kept: set[int],
) -> None:
    """A letter without a model may be of any; `stranger` is registered after the request."""
    erasure = await request_erasure(client, _SUBJECT, _ACROSS)
    async with engine.begin() as connection:
        model = None if model_id is None else await registrations.ensure(connection, model_id)
    hold = await place_hold(engine, model, "received_at > TIMESTAMP('2000-01-01T00:00:00Z')")
    dry = (await client.post(_ACROSS, json={**_SUBJECT, "dry_run": True})).json()
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert erasure["state"] == "partly_held", erasure
    assert erasure["progress"]["held"] == dry["held"]
    assert await list_erased(engine) == _ALL - kept
    await release_hold(engine, hold)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("deleted", 0), erasure
    assert await list_erased(engine) == _ALL


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("path", [ERASURES, _ACROSS])
@pytest.mark.parametrize("dry_run", [False, True])
async def test_refuses_a_key_that_nothing_has(
    client: httpx.AsyncClient, path: str, dry_run: bool
) -> None:
    body = {"subject": {"key": "persn", "value": "ann"}, "dry_run": dry_run}
    answer = await client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["type"].endswith("#unknown-metadata-key")
    [error] = problem["errors"]
    assert (error["path"], error["known"][0]) == ("subject.key", "person")
    listed = await client.get(_ACROSS)
    assert listed.json()["items"] == []


@pytest.mark.usefixtures("stored")
async def test_accepts_a_key_that_only_quarantined_events_have(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    record = make_record(8, None, b'{"model_id":"model","pers":"Jos\\u00C9 \\"the\\" one')
    async with engine.begin() as connection:
        await dead_letters.add(connection, [record])
        await connection.execute(kafka_partition.update().values(next=9, dead=7))
    body = {"subject": {"key": "pers", "value": 'JosÉ "the" one'}}
    other = await client.post("/v1/models/other/erasures", json=body)
    assert other.status_code == 422, other.text
    erasure = await request_erasure(client, body)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["inferences"], erasure["rows"]["dead_letter"]) == (0, 1)
    assert erasure["message"] is None  # something was erased
    assert await list_erased(engine) == {8}


async def give_up_what_a_hold_keeps(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> dict[str, Any]:
    """Erase the subject under a hold over everything, and request that what it keeps is given up;
    return the erasure as it was requested."""
    await place_hold(engine, None, "received_at > TIMESTAMP('2000-01-01T00:00:00Z')")
    erasure = await request_erasure(client, _SUBJECT, _ACROSS)
    await run_retention()
    path = f"{_ACROSS}/{erasure['id']}/give-up"
    assert (await client.post(path, json={"reason": "a case"})).status_code == 202
    return erasure


@pytest.mark.usefixtures("stored")
async def test_gives_up_what_a_hold_keeps(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    erasure = await give_up_what_a_hold_keeps(client, engine, run_retention)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("deleted", 0), erasure
    assert await list_erased(engine) == set()


async def test_erases_where_no_model_is_registered(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    erasure = await request_erasure(client, _SUBJECT, _ACROSS)
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    assert await list_erased(engine) == _ALL


async def test_what_cannot_be_given_up_does_not_stop_the_service(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    """The ledger names what is given up by its model, and no model is registered."""
    erasure = await give_up_what_a_hold_keeps(client, engine, run_retention)
    failures = RETENTION_TROUBLE.labels("other")
    before = failures._value.get()
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], failures._value.get()) == ("failed", before + 1), erasure
    assert "not registered" in erasure["error"]
    assert await list_erased(engine) == set()
