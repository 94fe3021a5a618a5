"""Blobs with any content are stored: none ends or stops the pipeline."""

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import (
    inference,
    metadata_key,
    metadata_number,
    metadata_string,
    prediction,
)
from inference_store.inference.layout import Kind
from tests.integration.ingester.conftest import RunningIngester, wait_for_counts
from tests.producer import Capture, Producer, capture
from tests.transactions import execute, fetch, scalar

GOOD = json.dumps(
    {"outputs": [{"name": "p", "datatype": "BYTES", "shape": [1], "data": ['[{"label":"a"}]']}]}
).encode()


@dataclass(frozen=True, slots=True)
class Odd(Capture):
    """A capture whose blobs a test chooses."""

    odd: dict[Kind, bytes] = field(default_factory=dict)

    @property
    def blobs(self) -> dict[str, bytes]:
        """Return the objects by key."""
        return {self.key(kind): data for kind, data in self.odd.items()}


def make_odd_capture(number: int, **blobs: bytes) -> Odd:
    usual = {"data": b"d", "metadata": b"[]", "response": GOOD}
    return Odd(number, odd=cast("dict[Kind, bytes]", usual | blobs))


def make_metadata(*values: Any, type: str = "float") -> bytes:
    entries = [{"key": f"k{n}", "type": type, "value": value} for n, value in enumerate(values)]
    return json.dumps(entries).encode()


BLOBS: dict[str, dict[str, bytes]] = {
    "metadata over its cap": {"metadata": b"[" + b" " * (1024 * 1024) + b"]"},
    "response over its cap": {"response": b" " * (4 * 1024 * 1024 + 1)},
    "not JSON": {"metadata": b"<xml/>", "response": b"\x89PNG\r\n\x1a\n"},
    "NUL characters": {
        "metadata": json.dumps(
            [
                {"key": "a\0b", "type": "string", "value": "x\0y"},
                {"key": "k", "type": "json", "value": {"in\0side": "z\0"}},
            ]
        ).encode(),
        "response": GOOD.replace(b'\\"a\\"', b'\\"a\\\\u0000\\"'),
    },
    "lone surrogates": {
        "metadata": b'[{"key":"k","type":"string","value":"\\ud800"},'
        b'{"key":"\\udfff","type":"string","value":"x"}]',
        "response": GOOD.replace(b'\\"a\\"', b'\\"\\\\ud800\\"'),
    },
    "NaN and infinities": {
        "metadata": make_metadata("NaN", "Infinity", "-inf", float("nan"), float("inf")),
        "response": GOOD.replace(b'\\"a\\"', b'\\"a\\", \\"score\\": NaN'),
    },
    "huge exponents": {
        "metadata": make_metadata("1e999", "1e200000", "-1e-200000", "9" * 5000).replace(
            b'"1e999"', b"1e999"
        ),
        "response": GOOD.replace(b'\\"a\\"', b'\\"a\\", \\"score\\": 1e999'),
    },
    "absurd instants": {
        "metadata": make_metadata(
            "9999-12-31T23:59:59+00:00",
            "0001-01-01",
            "99999-01-01",
            "9999-12-31T23:59:59-23:59",
            type="timestamp",
        )
    },
}


async def test_stores_odd_blobs(running: RunningIngester, engine: AsyncEngine) -> None:
    service, producer = running
    captures = [make_odd_capture(number, **blobs) for number, blobs in enumerate(BLOBS.values())]
    await producer.produce(*captures)
    await wait_for_counts(engine, stored=len(BLOBS))
    assert service.process.running
    async with engine.connect() as connection:
        rows = await connection.execute(select(inference.c.inference_id, inference.c.flags))
        flags = {row[0]: row[1] for row in rows}
    for name, flag in (
        ("metadata over its cap", "metadata_too_large"),
        ("not JSON", "metadata_unreadable"),
    ):
        assert flag in flags[f"inference-{list(BLOBS).index(name)}"], flags


async def test_indexes_copied_metadata_and_long_and_repeated_values(
    producer: Producer, engine: AsyncEngine
) -> None:
    """An engine copied them; our proxy wrote none, an empty list, or more than the cap."""
    copied = {"metadata": make_metadata("987", type="int").decode()}
    answer = json.dumps({"outputs": [{"name": "p", "data": [], "parameters": copied}]}).encode()
    bare = b'{"standard_metadata": {}, "metadata": [], "event": {}, "request": {}, "capture": {}}'
    blobs = (b"[]", bare, b"[" + b" " * (1024 * 1024) + b"]", make_metadata("1", type="int"))
    captures = [make_odd_capture(n, metadata=blob, response=answer) for n, blob in enumerate(blobs)]
    await producer.produce(*captures)
    await wait_for_counts(engine, stored=len(blobs))
    values = Counter(await fetch(engine, select(metadata_number.c.value)))
    assert values == {Decimal(987): 3, Decimal(1): 1}
    # 10 kB that do not fit into an index row even compressed
    long = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(3500))
    metadata = [
        {"key": "long", "type": "string", "value": long},
        {"key": "same", "type": "json", "value": [1, 1.0, "1", 1e0, True]},
    ]
    await producer.produce(capture(9, metadata=metadata))
    await wait_for_counts(engine, stored=len(blobs) + 1)
    whole = select(metadata_string.c.whole).where(metadata_string.c.whole.is_not(None))
    numbers = select(metadata_number.c.value).join(
        metadata_key, metadata_key.c.key == metadata_number.c.key
    )
    async with engine.connect() as connection:
        assert await connection.scalar(whole) == long
        rows = await connection.execute(numbers.where(metadata_key.c.name == "same[]"))
        assert list(rows.scalars()) == [Decimal(1)]


async def test_redelivery_does_not_undo_an_edit(producer: Producer, engine: AsyncEngine) -> None:
    """The redelivery comes in a batch with new events, after the blob was rewritten."""
    first = [capture(number) for number in range(3)]
    await producer.produce(*first)
    await wait_for_counts(engine, stored=3)
    await execute(engine, inference.update().values(revision=2, metadata=b"[]"))
    edited = [
        capture(number, metadata=[{"key": "new", "type": "int", "value": "1"}])
        for number in range(3)
    ]
    await producer.produce(*edited, *(capture(number) for number in range(3, 6)))
    await wait_for_counts(engine, stored=6, duplicate=3)
    edited_rows = select(func.count()).where(
        inference.c.revision == 2, inference.c.metadata == b"[]"
    )
    assert await scalar(engine, edited_rows) == 3
    assert await scalar(engine, select(func.count()).select_from(prediction)) == 12
    assert await scalar(engine, select(func.count()).select_from(metadata_number)) == 24
