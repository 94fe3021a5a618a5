"""Arrow and the client's tables: the same rows and values by each reader."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events.event import Extras
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.stored_inferences import NewInference, at, store
from tests.readers.environment import read

from .test_exports_exact import write_query

pytestmark = pytest.mark.real_readers

_BIG = "123456789012345678901234567890"
_ODD_KEYS = ('a "key", of\nnone', "Größe 😀", "=1+1", "select", "cursor")
Metadata = list[tuple[str, str, str | None]]
ROWS: list[tuple[Metadata, Mapping[str, Any], list[tuple[str, str, str | None]]]] = [
    ([("n", "int", "5"), ("price", "float", "0.10")], {"n": 5, "price": 0.1}, []),
    (
        [("n", "int", str(2**53 + 1)), ("price", "float", "NaN"), ("day", "bool", "True")],
        {"n": 2**53 + 1, "day": True},
        [("price", "float", "NaN")],
    ),
    (
        [("n", "int", _BIG), ("price", "float", "0.1000000000000000000001")],
        {"price": 0.1},
        [("n", "int", _BIG), ("price", "float", "0.1000000000000000000001")],
    ),
    ([("speed", "float", "1e300")], {"speed:float": 1e300}, []),
    ([("speed", "string", 'fast, "very"\nfast')], {"speed:string": 'fast, "very"\nfast'}, []),
    (
        [("n", "int", "n/a"), ("note", "string", ""), ("least", "int", str(-(2**63)))],
        {"note": "", "least": -(2**63)},
        [("n", "int", "n/a")],
    ),
    (
        [("shift", "timestamp", "2026-11-01T06:00:00.000001+02:00"), ("note", "string", None)],
        {"shift": "2026-11-01T04:00:00.000001+00:00"},
        [("note", "string", None)],
    ),
    ([(key, "string", f"of {key}") for key in _ODD_KEYS], {k: f"of {k}" for k in _ODD_KEYS}, []),
    ([("where", "json", '{"angle": 12.75}')], {"where": '{"angle": 12.75}'}, []),
]
"""Metadata, what it is in its columns, and what is in `metadata_rest`."""


def make_inferences() -> list[NewInference]:
    return [
        NewInference(
            f"frame-{number}",
            at(number),
            metadata,
            [("person", 0.25), ("car, red", None)] if number % 2 else None,
            aliases=(f"req/{number}",),
            extras=Extras(ok=bool(number % 2), model_version="" if number == 3 else None),
        )
        for number, (metadata, _, _) in enumerate(ROWS)
    ]


def check_arrow(reader: str, rows: list[Any]) -> None:
    assert [row["inference_id"] for row in rows] == [f"frame-{n}" for n in range(len(ROWS))]
    columns = {f"metadata.{name}" for _, expected, _ in ROWS for name in expected}
    assert columns == {name for name in rows[0] if name.startswith("metadata.")}, reader
    for number, (row, (_, expected, rest)) in enumerate(zip(rows, ROWS, strict=True)):
        values = {name: row[f"metadata.{name}"] for name in expected}
        assert values == expected, reader
        assert {name for name in columns if row[name] is not None} == {
            f"metadata.{name}" for name in expected
        }, reader
        items = json.loads(row["metadata_rest"] or "[]")
        assert [(item["key"], item["type"], item["value"]) for item in items] == rest, reader
        assert (row["ok"], row["aliases"]) == (bool(number % 2), [f"req/{number}"]), reader
        assert row["received_at"] == f"2026-11-01T00:00:0{number}+00:00", reader
        assert row["model_version"] == ("" if number == 3 else None), reader
        predictions = [(item["label"], item["score"]) for item in row["predictions"] or ()]
        expected_predictions = [("person", 0.25), ("car, red", None)] if number % 2 else []
        assert predictions == expected_predictions, reader


async def test_each_reader_reads_the_same(
    make_app: MakeApp, engine: AsyncEngine, tmp_path: Path
) -> None:
    await store(engine, *make_inferences())
    arrow = tmp_path / "answer.arrows"
    async with serve_app(make_app()) as http:
        await write_query(http, arrow, "application/vnd.apache.arrow.stream")
        arguments = (str(arrow), str(http.base_url), "model")
        tables = await asyncio.to_thread(read, "read_tables.py", *arguments, home=tmp_path)
    assert len(tables) == 5
    for reader, rows in tables.items():
        check_arrow(reader, rows)
