"""Inferences of the population as a client would send them: for the ingester and for peers."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from .population import (
    CAMERAS,
    LABELS,
    NEW_FIRMWARE,
    OLD_FIRMWARE,
    ORGANIZATIONS,
    TAGS,
    Chunk,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRMWARE = (*OLD_FIRMWARE, *NEW_FIRMWARE)
_TYPES = {int: "int", float: "float", str: "string", bool: "bool", dict: "json", list: "json"}


@dataclass(frozen=True, slots=True)
class InferenceDescription:
    """One inference. `metadata` by key; times among them are RFC 3339."""

    number: int
    model_number: int
    """Of its model in MODELS."""
    received_at: datetime
    metadata: dict[str, Any]
    predictions: list[dict[str, Any]] | None
    """None: it failed."""

    def typed(self) -> list[dict[str, Any]]:
        """The metadata as a list of key, type and value."""
        return [{"key": k, "type": _type(k, v), "value": v} for k, v in self.metadata.items()]


def _type(key: str, value: Any) -> str:
    return "timestamp" if key == "captured_at" else _TYPES.get(type(value), "json")


def describe(chunk: Chunk) -> Iterator[InferenceDescription]:
    """Yield every inference of a chunk, in order."""
    for at in range(chunk.count):
        yield InferenceDescription(
            number=int(chunk.number[at]),
            model_number=int(chunk.model[at]),
            received_at=_instant(chunk.received_at[at]),
            metadata=_metadata(chunk, at),
            predictions=_predictions(chunk, at) if chunk.ok[at] else None,
        )


def _instant(microseconds: Any) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))


def _metadata(chunk: Chunk, at: int) -> dict[str, Any]:
    street = int(chunk.segment[at])
    members: dict[str, Any] = {
        "frame_number": int(chunk.frame_number[at]),
        "latitude": int(chunk.location[at, 0]) / 10_000,
        "longitude": int(chunk.location[at, 1]) / 10_000,
        "exposure": int(chunk.exposure[at]) / 10_000,
        "temperature": int(chunk.temperature[at]) / 10_000,
        "camera_position": {"angle": int(chunk.angle[at])},
        "data_source": CAMERAS[chunk.camera[at]],
        "organization": ORGANIZATIONS[chunk.organization[at]],
        "segment": f"street-{street // 100:04d}/pole-{street:06d}",
        "firmware": _FIRMWARE[chunk.firmware[at]],
        "night": bool(chunk.night[at]),
        "captured_at": _instant(chunk.captured_at[at]).isoformat(),
    }
    if tags := [TAGS[tag] for tag in chunk.tags[at] if tag >= 0]:
        members["tags"] = tags
    if chunk.noted[at]:
        members["note"] = f"seen by hand, number {chunk.number[at]:010d}"
    if chunk.incident[at] >= 0:
        members["incident"] = int(chunk.incident[at])
    if chunk.unattended[at]:
        members["operator"] = None
    return members


def _predictions(chunk: Chunk, at: int) -> list[dict[str, Any]]:
    corners = ("xmin", "ymin", "xmax", "ymax")
    return [
        {
            "label": LABELS[chunk.label[at, rank]],
            "score": float(chunk.score[at, rank]),
            **dict(zip(corners, map(float, chunk.box[at, rank]), strict=True)),
        }
        for rank in range(int(chunk.predictions[at]))
    ]
