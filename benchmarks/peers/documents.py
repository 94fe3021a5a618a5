"""An inference of the population as each peer keeps it: one document, or a trace with tags."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import orjson

from benchmarks.query.described import Described, described
from benchmarks.query.plan import plan
from benchmarks.query.population import MODELS, Chunk


def chunks(size: int) -> list[Chunk]:
    """The whole population, the oldest first."""
    return [chunk for filled in plan(size) for chunk in filled.chunks()]


def inferences(chunk: Chunk) -> Iterator[tuple[UUID, Described]]:
    """Every one of a chunk, with the uid that it has in the store."""
    for uid, each in zip(chunk.uid, described(chunk), strict=True):
        yield UUID(bytes=uid.tobytes()), each


def name(each: Described) -> str:
    """The client's id of it."""
    return f"frame-{each.number:09d}"


def document(each: Described) -> str:
    """All of it that is searched, as JSON."""
    made = {
        "inference_id": name(each),
        "model": MODELS[each.place],
        "received_at": each.received_at,
        "ok": each.predictions is not None,
        "metadata": each.metadata,
        "predictions": each.predictions or [],
    }
    return orjson.dumps(made).decode()


def tags(each: Described) -> dict[str, str]:
    """The metadata as texts: an object's members each under their path, a list as JSON."""
    return {key: _spelt(value) for key, value in _leaves("", each.metadata)}


def _leaves(before: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(f"{before}{key}.", value)
        else:
            yield before + key, value


def _spelt(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
