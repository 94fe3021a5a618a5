"""Sends ground truth: of one inference, or of many from a file or rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from inference_store_client import reading
from inference_store_client.errors import SettingsError
from inference_store_client.json_text import write_json
from inference_store_client.requests import NDJSON, make_path, make_request
from inference_store_client.transport import Transport
from inference_store_client.values.truth import GroundTruth, TruthLoad, TruthSets

Item: TypeAlias = str | Mapping[str, Any]
"""A label, or `label`, `box`, `text` and `value` by name."""
TruthRows: TypeAlias = Iterable[Mapping[str, Any]]
_SECONDS: Final = 3600.0
"""A million labels take a minute or two."""
_KINDS: Final = {
    ".csv": "text/csv",
    **dict.fromkeys((".jsonl", ".ndjson"), NDJSON),
    ".parquet": "application/vnd.apache.parquet",
}


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
    """Send a file as it is, or rows as NDJSON, in one request: the API has to see which rows are
    one set. `model_id`: of which model they are; None: they say so."""
    of_model = () if model_id is None else ("models", model_id)
    params = {"columns": [f"{ours}={theirs}" for ours, theirs in columns.items()]}
    request = make_request("POST", make_path(*of_model, "ground-truth"), params=params)
    kind, body = await transport.call(partial(_read, rows))
    request = replace(request, body=body, content_type=kind, seconds=_SECONDS)
    return await reading.fetch(transport, TruthLoad, request)


def _read(rows: str | Path | TruthRows) -> tuple[str, bytes]:
    if not isinstance(rows, str | Path):
        return NDJSON, b"".join(write_json(row).encode() + b"\n" for row in rows)
    path = Path(rows)
    if path.suffix not in _KINDS:
        raise SettingsError(f"{path.name} ends in none of {', '.join(_KINDS)}")
    return _KINDS[path.suffix], path.read_bytes()
