"""Events that wait beside the index: dead letters and parked events of ann and bob."""

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import select

from inference_store.index import dead_letters, parked
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.records import Record, Rejection
from inference_store.index.tables import dead_letter, kafka_partition, parked_event
from tests.builders import NOW, make_payload

from .api_client import Api

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
        await open_partition(connection, PARTITION, first=0, began="earliest")
        await dead_letters.add(connection, letters)
        waiting = [(*event, f"s3://{api.bucket}/nowhere") for event in events]
        await parked.add(connection, waiting, parked.Schedule(*(3 * [NOW - NOW])))
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
    letters = dead_letter.c
    rows = await api.fetch(select(letters.offset, letters.state, letters.payload))
    return {row.offset: (row.state, bool(row.payload)) for row in rows}


async def change_letter(api: Api, offset: int, **values: Any) -> None:
    await api.execute(dead_letter.update().values(values).where(dead_letter.c.offset == offset))


async def list_parked(api: Api) -> set[int]:
    return set(await api.fetch(select(parked_event.c.offset)))
