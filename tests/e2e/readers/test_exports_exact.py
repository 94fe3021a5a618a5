"""Exports against the lines of a query, value by value, by a script that shares no code with the
store: what people send, and what nobody should."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.part_formats import PART_FORMATS
from inference_store.inference.events.event import Extras
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.retention.run import run_turn
from tests.integration.api.api_client import make_worker
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.stored_inferences import NewInference, at, store
from tests.readers.environment import read

pytestmark = pytest.mark.real_readers

SEED, COUNT = 20, 400
Item = tuple[str, str, str | None]
_INTS = (
    *("0", "-0", "007", "+5", str(2**63 - 1), str(2**63), str(-(2**63)), "1" * 30),
    *("-" + "9" * 30, "x", ""),
)
_FLOATS = (
    *("NaN", "Infinity", "-Infinity", "1e308", "1e309", "5e-324", "1e-400", "-0.0", "0.1", "0.10"),
    *("0.1000000000000000055511151231257827", "123456789012345678.5", "1E+5", ".5", "5.", "1_0"),
    "",
)
_TIMES = (
    *("1969-12-31T23:59:59.999999Z", "1600-02-29T00:00:00Z", "0001-01-01T00:00:00Z"),
    *("9999-12-31T23:59:59.999999Z", "12000-01-01T00:00:00Z", "2026-02-30T00:00:00Z"),
    *("2026-11-01T00:00:00.1234567Z", "2026-11-01T23:30:00+14:00"),
    "2026-11-01T00:00:00.000001-12:00",
    *("2026-11-01", "-0044-03-15T00:00:00Z", "2016-12-31T23:59:60Z", "0001-01-01T00:00:00+14:00"),
)
_TEXTS = (
    *("", " ", "\x00", "a\x00b", "\ud800", "a\udfffb", "😀", "e\u0301", "\u202e", "\r\n"),
    *("\n", "\r"),
    *('"', '""', ",", "'", "=1+1", "null", "NULL", "true", "\\N", "\ufeff", "\x1a", "x" * 5000),
)
_BOOLS = ("true", "false", "True", "FALSE", "1", "yes", "")
_JSONS = ("{}", "[]", '{"a": {"b": [1, 2]}}', "null", "1e400", '"\\ud800"', "{", '{"a": 1, "a": 2}')
_VALUES = {
    "int": _INTS,
    "float": _FLOATS,
    "timestamp": _TIMES,
    "string": _TEXTS,
    "bool": _BOOLS,
    "json": _JSONS,
    "": _TEXTS,
}
_KEYS = (
    *("n", "n:int", "n:string", "a.b", "a", "a[0]", "Größe", "😀", "e\u0301", "\u00e9", " ", "a b"),
    *('"', "a,b", "a\nb", "uid", "rest", "metadata_rest", "metadata.n", "select", "cursor", "=1+1"),
)


def make_metadata(chance: Random) -> list[Item]:
    """Draw values: of any type under any key, of one key several times."""
    items: list[Item] = []
    for _ in range(chance.randint(0, 9)):
        kind = chance.choice(sorted(_VALUES))
        key = chance.choice(_KEYS) if chance.random() < 0.7 else f"{kind}-key"
        value = None if chance.random() < 0.05 else chance.choice(_VALUES[kind])
        items.append((key, kind, value))
    items += [(f"key-{chance.randrange(1200):04}", "int", str(chance.randrange(9)))] * 2
    return items


def make_inferences() -> list[NewInference]:
    chance = Random(SEED)
    scores = (None, 0.0, 1.0, 0.1 + 0.2, 5e-324, 1 / 3)
    return [
        NewInference(
            f"frame-{number} {chance.choice(('😀', ',', '', chr(34)))}",
            at(number / 1000),
            [
                *make_metadata(chance),
                *((f"key-{key:04}", "int", "1") for key in range(number * 3, number * 3 + 3)),
            ],
            chance.choice(
                (None, [], [(chance.choice(("a, b", "", None, "é")), chance.choice(scores))])
            ),
            aliases=chance.choice(((), ("one",), ("a,b", 'c"d'))),
            extras=Extras(
                ok=chance.choice((None, True, False)), error=chance.choice((None, "", "a\nb"))
            ),
        )
        for number in range(COUNT)
    ]


async def write_query(http: httpx.AsyncClient, path: Path, media_type: str) -> None:
    """Write all inferences, the oldest first, as the query route answers in this type."""
    body = {"sort": "received_at", "include": ["metadata", "predictions"]}
    headers = {"Accept": media_type}
    answer = await http.post("/v1/models/model/inferences/query", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    await asyncio.to_thread(path.write_bytes, answer.content)


async def test_each_format_has_exactly_what_a_query_answers(
    make_app: MakeApp,
    engine: AsyncEngine,
    blobs: Blobs,
    settings: Callable[..., ApiSettings],
    tmp_path: Path,
) -> None:
    print(f"seed {SEED}")
    await store(engine, *make_inferences())
    lines = tmp_path / "lines.ndjson"
    # `chariot` has other names: tests/unit/export/test_part_formats.py compares it
    formats = [format for format in PART_FORMATS.values() if format.name != "chariot"]
    parts = [tmp_path / f"part{format.suffix}" for format in formats]
    async with serve_app(make_app()) as http:
        await write_query(http, lines, "application/x-ndjson")
        exports = []
        for format in formats:
            body = {"format": format.name}
            answer = await http.post("/v1/models/model/exports", json=body)
            assert answer.status_code == 202, answer.text
            exports.append(answer.json()["id"])
        await run_turn(make_worker(engine, blobs, settings()))
        for export, path in zip(exports, parts, strict=True):
            part = await http.get(f"/v1/exports/{export}/parts/1")
            assert part.status_code == 200, part.text
            await asyncio.to_thread(path.write_bytes, part.content)
    compared = await asyncio.to_thread(
        read, "compare_exports.py", str(lines), *map(str, parts), home=tmp_path
    )
    assert {suffix: result["differences"] for suffix, result in compared.items()} == {
        path.suffix: [] for path in parts
    }
    assert {result["rows"] for result in compared.values()} == {COUNT}
    [metadata] = {result["metadata"] for result in compared.values()}
    [rest] = {
        result["rest"] for suffix, result in compared.items() if suffix not in {".jsonl", ".tar"}
    }
    assert metadata > COUNT * 5
    assert 0 < rest < metadata
