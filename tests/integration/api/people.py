"""Inferences, letters and parked events of ann and bob; erasures, holds, exports of them."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import orjson
from sqlalchemy import select

from inference_store.erasure.progress import Erasure, find_erasures
from inference_store.index import unsettled
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.tables import kafka_partition, unsettled_event
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.events import StorageKey
from tests.builders import NOW, make_payload
from tests.integration.stored_inferences import NewInference, at

from .api_client import Api

ERASURES = "/v1/models/model/erasures"
ACROSS = "/v1/erasures"
SUBJECT = {"subject": {"key": "person", "value": "ann"}}
ANY_TIME = "received_at > TIMESTAMP('2000-01-01T00:00:00Z')"


def make_person(number: int, who: str, **more: Any) -> NewInference:
    items = [("person", "string", who), ("n", "int", number)]
    return NewInference(f"i{number}", at(number), items, **more)


async def store_people(api: Api, model_id: str = "model") -> None:
    """Store six inferences of a model, of ann and bob in turn, each with an object."""
    await api.store(
        *(
            make_person(
                n,
                ("ann", "bob")[n % 2],
                keys=(api.put_blob(f"{model_id}/d{n}", b"x"), None, None),
                model_id=model_id,
            )
            for n in range(6)
        )
    )


async def request_erasure(api: Api, body: Any, path: str = ERASURES) -> dict[str, Any]:
    answer = await api.post(path, json=body)
    assert answer.status_code == 202, answer.text
    erasure: dict[str, Any] = answer.json()
    assert answer.headers["Location"] == f"/v1/erasures/{erasure['id']}"
    return erasure


async def read_erasure(api: Api, requested: dict[str, Any]) -> dict[str, Any]:
    erasure: dict[str, Any] = await api.read(f"/v1/erasures/{requested['id']}")
    return erasure


async def erase(api: Api, body: Any, path: str = ERASURES) -> dict[str, Any]:
    """Request an erasure, run a turn of retention, and return what became of it."""
    requested = await request_erasure(api, body, path)
    await api.run_retention()
    return await read_erasure(api, requested)


async def find_only_erasure(api: Api) -> Erasure:
    [erasure] = await api.transact(find_erasures)
    return erasure


async def place_hold(api: Api, filter: str | None = None, **more: Any) -> str:
    """Place a hold on the model `model`, if `more` names no other; return its id."""
    values = {"name": "a case", "reason": "a file", "model_id": "model", "filter": filter}
    return str((await api.ask("/v1/holds", values | more, status=201))["id"])


async def release_hold(api: Api, hold: str, reason: str = "over") -> None:
    await api.call("DELETE", f"/v1/holds/{hold}", params={"reason": reason})


PARTITION = PartitionId("default", "inference-events", 0, 0)
ALL_OPEN = {0: ("open", True), 1: ("open", True), 2: ("open", True), 5: ("open", True)}
Rejected = tuple[Record, Rejection]


def make_event(offset: int, **changes: Any) -> bytes:
    keys = {f"{kind}_storage_key": f"late/{offset}/{kind}" for kind in ("data", "metadata")}
    named = {"model_id": "model", "inference_id": f"late-{offset}", "inference_storage_key": None}
    return make_payload(**named | keys | changes)


def make_rejected(
    offset: int, payload: bytes, model_id: str | None = "model", inference_id: str | None = None
) -> Rejected:
    rejection = Rejection("blob_missing", "late", model_id, inference_id)
    return Record(PARTITION, offset, NOW, b"key", payload, (("h", "v"),)), rejection


def encode_metadata(who: str) -> bytes:
    return orjson.dumps([{"key": "person", "type": "string", "value": who}])


async def add_quarantined(
    api: Api, letters: Sequence[Rejected], events: Sequence[Rejected] = ()
) -> None:
    """Add dead letters and parked events, and count them in the account of their partition."""
    offsets = [record.offset for record, _ in (*letters, *events)]
    async with api.engine.begin() as connection:
        await open_partition(connection, PARTITION, first=0)
        await unsettled.add_dead(connection, letters)
        waiting = [(*event, f"s3://{api.bucket}/nowhere") for event in events]
        await unsettled.park(connection, waiting)
        account = kafka_partition.c
        counts = {"dead": account.dead + len(letters), "parked": account.parked + len(events)}
        await connection.execute(kafka_partition.update().values(next=max(offsets) + 1, **counts))


async def add_letters_and_parked(api: Api) -> None:
    """Add dead letters and parked events, by offset.

    0: dead, of ann. 1: dead, of bob. 2: dead, of ann, cannot be decoded. 3: parked, of ann.
    4: parked, of bob. 5: dead, its metadata cannot be read.
    """
    for offset, name in enumerate(("ann", "bob", "ann", "ann", "bob")):
        api.put_blob(f"late/{offset}/metadata", encode_metadata(name))
        api.put_blob(f"late/{offset}/data", b"x")
    payloads = {n: make_event(n) for n in (0, 1, 3, 4, 5)} | {2: b'{"person": "ann", "broken'}
    rejected = {n: make_rejected(n, payloads[n], inference_id=f"late-{n}") for n in payloads}
    await add_quarantined(api, [rejected[n] for n in (0, 1, 2, 5)], [rejected[n] for n in (3, 4)])


async def read_letters(api: Api) -> dict[int, tuple[str, bool]]:
    """Return the state of each dead letter, and whether its bytes are stored, by offset."""
    letters = unsettled_event.c
    query = select(letters.offset, letters.state, letters.payload).where(letters.was_dead)
    rows = await api.fetch(query)
    return {row.offset: (row.state, bool(row.payload)) for row in rows}


async def change_letter(api: Api, offset: int, **values: Any) -> None:
    await api.execute(
        unsettled_event.update().values(values).where(unsettled_event.c.offset == offset)
    )


async def list_parked(api: Api) -> set[int]:
    return set(
        await api.fetch(select(unsettled_event.c.offset).where(unsettled_event.c.state == "parked"))
    )


EXPORTS = "/v1/models/model/exports"


async def request_export(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.post(EXPORTS, json=body)
    assert answer.status_code == 202, answer.text
    export: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/exports/{export['id']}"
    return export


async def read_export(api: Api, export: dict[str, Any]) -> dict[str, Any]:
    return dict(await api.read(f"/v1/exports/{export['id']}"))


async def list_parts(api: Api, export: dict[str, Any]) -> list[dict[str, Any]]:
    return list((await api.read(f"/v1/exports/{export['id']}/parts"))["items"])


async def download(part: dict[str, Any]) -> bytes:
    async with httpx.AsyncClient(timeout=120) as client:
        return (await client.get(part["url"])).content


def read_object(api: Api, export: dict[str, Any], name: str) -> dict[str, Any]:
    key = StorageKey(api.bucket, f"exports/{export['id']}/{name}")
    return dict(json.loads(api.blobs.get(key, limit=1_000_000)))


def list_keys(api: Api) -> list[str]:
    listed = api.blobs.page(api.bucket, "exports/", after="", limit=1000)
    return [item.place.key for item in listed]
