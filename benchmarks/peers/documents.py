"""An inference of the population as each peer keeps it: one document, or a trace with tags."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import orjson

from benchmarks.query.descriptions import InferenceDescription, describe
from benchmarks.query.plan import plan
from benchmarks.query.population import MODELS, Chunk


def list_chunks(size: int) -> list[Chunk]:
    """Return the whole population, the oldest first."""
    return [chunk for filled in plan(size) for chunk in filled.chunks()]


def list_inferences(chunk: Chunk) -> Iterator[tuple[UUID, InferenceDescription]]:
    """Yield every one of a chunk, with the uid that it has in the store."""
    for uid, inference in zip(chunk.uid, describe(chunk), strict=True):
        yield UUID(bytes=uid.tobytes()), inference


def format_name(inference: InferenceDescription) -> str:
    """Return the client's id of it."""
    return f"frame-{inference.number:09d}"


def format_document(inference: InferenceDescription) -> str:
    """Return all of it that is searched, as JSON."""
    members = {
        "inference_id": format_name(inference),
        "model": MODELS[inference.model_number],
        "received_at": inference.received_at,
        "ok": inference.predictions is not None,
        "metadata": inference.metadata,
        "predictions": inference.predictions or [],
    }
    return orjson.dumps(members).decode()


def format_tags(inference: InferenceDescription) -> dict[str, str]:
    """Return the metadata as texts: an object's members each under their path, a list as JSON."""
    return {key: _spell(value) for key, value in _leaves("", inference.metadata)}


def _leaves(before: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(f"{before}{key}.", value)
        else:
            yield before + key, value


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
