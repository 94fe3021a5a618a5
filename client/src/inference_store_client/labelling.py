"""Sends ground truth: of one inference, or of many from a file or rows."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from inference_store_client import reading
from inference_store_client.errors import SettingsError
from inference_store_client.json_text import read_json, write_json
from inference_store_client.requests import NDJSON, make_path, make_request
from inference_store_client.transport import Transport
from inference_store_client.values.truth import GroundTruth, TruthLoad, TruthSets

Item: TypeAlias = str | Mapping[str, Any]
"""A label, or `label`, `box`, `text` and `value` by name."""
TruthRows: TypeAlias = Iterable[Mapping[str, Any]]
_PARQUET: Final = "application/vnd.apache.parquet"
_ROWS: Final = 20_000
_ADDRESSES: Final = ("model_id", "inference_id", "uid", "data_hash")
_MOST_PROBLEMS: Final = 100
_COUNTS: Final = tuple(each.name for each in fields(TruthLoad) if each.name != "problems")


async def put_truth(
    transport: Transport, path: str, items: Sequence[Item], *, source: str, complete: bool
) -> GroundTruth:
    """Say what is true of the inference of a path."""
    shown = [{"label": item} if isinstance(item, str) else dict(item) for item in items]
    body = {"source": source, "complete": complete, "items": shown}
    return await reading.fetch(transport, GroundTruth, make_request("PUT", path, body=body))


async def read_truth(transport: Transport, path: str) -> Sequence[GroundTruth]:
    """Read what is true of it."""
    return (await reading.fetch(transport, TruthSets, make_request("GET", path))).sets


async def load(
    transport: Transport,
    model_id: str | None,
    rows: str | Path | TruthRows,
    columns: Mapping[str, str],
) -> TruthLoad:
    """Send the rows, some thousands at a time; those of one inference together. `model_id`: of
    which model they are; None: they say so."""
    of_model = () if model_id is None else ("models", model_id)
    path = make_path(*of_model, "ground-truth")
    params = {"columns": [f"{ours}={theirs}" for ours, theirs in columns.items()]}
    if isinstance(rows, str | Path) and Path(rows).suffix == ".parquet":
        request = make_request("POST", path, params=params)
        body = await transport.call(Path(rows).read_bytes)
        request = replace(request, body=body, content_type=_PARQUET)
        return await reading.fetch(transport, TruthLoad, request)
    whole, before = TruthLoad(**dict.fromkeys(_COUNTS, 0), problems=()), 0
    for some in _split(_read(rows), columns):
        body = b"\n".join(write_json(row).encode() for row in some)
        request = make_request("POST", path, params=params)
        request = replace(request, body=body, content_type=NDJSON)
        whole = _add(whole, await reading.fetch(transport, TruthLoad, request), before)
        before += len(some)
    return whole


def _read(rows: str | Path | TruthRows) -> Iterator[Mapping[str, Any]]:
    if not isinstance(rows, str | Path):
        yield from rows
        return
    path = Path(rows)
    if path.suffix not in {".csv", ".jsonl", ".ndjson"}:
        raise SettingsError(f"{path.name} ends in none of .csv, .jsonl, .ndjson and .parquet")
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            for row in csv.DictReader(file):
                yield {name: value for name, value in row.items() if name and value}
        else:
            yield from (_read_line(line) for line in file if line.strip())


def _read_line(line: str) -> Mapping[str, Any]:
    return reading.require_object(read_json(line))


def _split(
    rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]
) -> Iterator[list[Mapping[str, Any]]]:
    names = [columns.get(name, name) for name in _ADDRESSES]
    names += [theirs for ours, theirs in columns.items() if ours.startswith("metadata.")]
    some: list[Mapping[str, Any]] = []
    for row in rows:
        if len(some) >= _ROWS and any(row.get(n) != some[-1].get(n) for n in names):
            yield some
            some = []
        some.append(row)
    if some:
        yield some


def _add(whole: TruthLoad, more: TruthLoad, before: int) -> TruthLoad:
    counts = {name: getattr(whole, name) + getattr(more, name) for name in _COUNTS}
    problems = [*whole.problems, *(replace(one, line=one.line + before) for one in more.problems)]
    return TruthLoad(**counts, problems=tuple(problems[:_MOST_PROBLEMS]))
