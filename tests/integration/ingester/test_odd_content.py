"""Whatever a producer writes into the blobs is stored: nothing of it ends or stops the pipeline."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.accounting import Outcome
from inference_store.index.tables import (
    inference,
    metadata_key,
    metadata_number,
    metadata_string,
    prediction,
)
from inference_store.inference.layout import Kind
from tests.e2e.faults.books_close import counted
from tests.integration.ingester.conftest import RunningIngester
from tests.polling import until
from tests.producer import Capture, capture

GOOD = json.dumps(
    {"outputs": [{"name": "p", "datatype": "BYTES", "shape": [1], "data": ['[{"label":"a"}]']}]}
).encode()


class Odd(Capture):
    """A capture whose blobs are what the test says."""

    __slots__ = ("odd",)
    odd: dict[Kind, bytes]

    @property
    def blobs(self) -> dict[str, bytes]:
        """The objects, by key."""
        return {self.key(kind): data for kind, data in self.odd.items()}


def odd(number: int, **blobs: bytes) -> Odd:
    made = Odd(number)
    object.__setattr__(made, "odd", {"data": b"d", "metadata": b"[]", "response": GOOD} | blobs)
    return made


def listed(*values: Any, type: str = "float") -> bytes:
    entries = [{"key": f"k{n}", "type": type, "value": value} for n, value in enumerate(values)]
    return json.dumps(entries).encode()


BLOBS: dict[str, dict[str, bytes]] = {
    "metadata over its cap": {"metadata": b"[" + b" " * (1024 * 1024) + b"]"},
    "response over its cap": {"response": b" " * (4 * 1024 * 1024 + 1)},
    "empty blobs": {"metadata": b"", "response": b""},
    "truncated JSON": {"metadata": listed("1")[:-5], "response": GOOD[:-20]},
    "not JSON": {"metadata": b"<xml/>", "response": b"\x89PNG\r\n\x1a\n"},
    "UTF-16": {"metadata": listed("1").decode().encode("utf-16")},
    "Latin-1": {"metadata": '[{"key":"ä","type":"string","value":"ö"}]'.encode("latin-1")},
    "byte order mark": {"metadata": b"\xef\xbb\xbf" + listed("1")},
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
        "metadata": listed("NaN", "Infinity", "-inf", float("nan"), float("inf")),
        "response": GOOD.replace(b'\\"a\\"', b'\\"a\\", \\"score\\": NaN'),
    },
    "huge exponents": {
        "metadata": listed("1e999", "1e200000", "-1e-200000", "9" * 5000).replace(
            b'"1e999"', b"1e999"
        ),
        "response": GOOD.replace(b'\\"a\\"', b'\\"a\\", \\"score\\": 1e999'),
    },
    "deep nesting": {
        "metadata": json.dumps(
            [{"key": "k", "type": "json", "value": "[" * 5000 + "]" * 5000}]
        ).encode(),
        "response": b"[" * 100_000 + b"]" * 100_000,
    },
    "deep metadata": {"metadata": b"[" * 100_000},
    "absurd instants": {
        "metadata": listed(
            "9999-12-31T23:59:59+00:00",
            "0001-01-01",
            "99999-01-01",
            "9999-12-31T23:59:59-23:59",
            type="timestamp",
        )
    },
    "not a list": {"metadata": b"7", "response": b'"text"'},
    "nulls everywhere": {
        "metadata": b'[null, {"key": null}, {"key": "k"}, {"type": "int"}]',
        "response": b'{"outputs": [null, {"data": null}, {"data": [null]}]}',
    },
}


async def test_odd_blobs_are_stored(running: RunningIngester, engine: AsyncEngine) -> None:
    service, producer = running
    captures = [odd(number, **blobs) for number, blobs in enumerate(BLOBS.values())]
    await producer.produce(*captures)
    await until(lambda: counted(engine), lambda found: found.total() == len(BLOBS))
    found = await counted(engine)
    assert found[Outcome.STORED] == len(BLOBS), found
    assert service.process.running
    async with engine.connect() as connection:
        rows = await connection.execute(select(inference.c.inference_id, inference.c.flags))
        flags = {row[0]: row[1] for row in rows}
    wanted = {"metadata over its cap": "metadata_too_large", "not JSON": "metadata_unreadable"}
    for name, flag in wanted.items():
        assert flag in flags[f"inference-{list(BLOBS).index(name)}"], flags


async def test_what_the_engine_copied_is_indexed_whatever_became_of_the_request(
    running: RunningIngester, engine: AsyncEngine
) -> None:
    """As our own proxy writes it: a blob without metadata, an empty list; and one over its cap."""
    _, producer = running
    copied = {"metadata": listed("987", type="int").decode()}
    answer = json.dumps({"outputs": [{"name": "p", "data": [], "parameters": copied}]}).encode()
    bare = b'{"standard_metadata": {}, "metadata": [], "event": {}, "request": {}, "capture": {}}'
    blobs = (b"[]", bare, b"[" + b" " * (1024 * 1024) + b"]", listed("1", type="int"))
    made = [odd(n, metadata=blob, response=answer) for n, blob in enumerate(blobs)]
    await producer.produce(*made)
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == len(blobs))
    async with engine.connect() as connection:
        values = Counter((await connection.execute(select(metadata_number.c.value))).scalars())
    assert values == {Decimal(987): 3, Decimal(1): 1}


async def test_long_and_repeated_values(running: RunningIngester, engine: AsyncEngine) -> None:
    _, producer = running
    # 10 kB that no compression makes fit into an index row
    long = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(3500))
    metadata = [
        {"key": "long", "type": "string", "value": long},
        {"key": "same", "type": "json", "value": [1, 1.0, "1", 1e0, True]},
    ]
    await producer.produce(capture(1, metadata=metadata))
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 1)
    async with engine.connect() as connection:
        whole = await connection.scalar(
            select(metadata_string.c.whole).where(metadata_string.c.whole.is_not(None))
        )
        assert whole == long
        numbers = select(metadata_number.c.value).join(
            metadata_key, metadata_key.c.key == metadata_number.c.key
        )
        found = await connection.execute(numbers.where(metadata_key.c.name == "same[]"))
        assert list(found.scalars()) == [Decimal(1)]


async def test_absurd_times_are_dead_letters(running: RunningIngester, engine: AsyncEngine) -> None:
    _, producer = running
    now = datetime.now(UTC)
    odd_times = [
        "0001-01-01T00:00:00Z",
        "1999-12-31T23:59:59Z",
        "9999-12-31T23:59:59Z",
        (now + timedelta(days=2)).isoformat(),
        "2026-13-01T00:00:00Z",
        "soon",
        "",
    ]
    await producer.put(capture(1))
    events = []
    for at in odd_times:
        fields = orjson.loads(capture(1).event)
        events.append(orjson.dumps(fields | {"request_received_at": at}))
    await producer.publish_all(events)
    old = capture(2, received_at=datetime(2000, 1, 1, tzinfo=UTC))
    await producer.produce(old)
    await until(lambda: counted(engine), lambda found: found.total() == len(events) + 1)
    found = await counted(engine)
    assert (found[Outcome.DEAD], found[Outcome.STORED]) == (len(events), 1)


async def test_the_same_id_for_ever_loses_nothing(
    running: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = running
    captures = [capture(number, inference_id="1") for number in range(40)]
    await producer.produce(*captures, *captures[:5])
    await until(lambda: counted(engine), lambda found: found.total() == 45)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 40, Outcome.DUPLICATE: 5})


async def test_a_redelivery_leaves_an_edit_alone(
    running: RunningIngester, engine: AsyncEngine
) -> None:
    """In a batch with new ones; and where the blob was rewritten meanwhile."""
    _, producer = running
    first = [capture(number) for number in range(3)]
    await producer.produce(*first)
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 3)
    async with engine.begin() as connection:
        await connection.execute(inference.update().values(revision=2, metadata=b"[]"))
    edited = [
        capture(number, metadata=[{"key": "new", "type": "int", "value": "1"}])
        for number in range(3)
    ]
    await producer.produce(*edited, *(capture(number) for number in range(3, 6)))
    await until(lambda: counted(engine), lambda found: found.total() == 9)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 6, Outcome.DUPLICATE: 3})
    async with engine.connect() as connection:
        edited_rows = select(func.count()).where(
            inference.c.revision == 2, inference.c.metadata == b"[]"
        )
        assert await connection.scalar(edited_rows) == 3
        assert await connection.scalar(select(func.count()).select_from(prediction)) == 12
        assert await connection.scalar(select(func.count()).select_from(metadata_number)) == 24
