"""A Kafka record that cannot be stored, as it is quarantined: its place and its bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .accounting import PartitionId


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason that a record is not stored: one of DEAD_LETTER_REASONS, and a sentence."""

    reason: str
    detail: str
    model_id: str | None = None
    inference_id: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Its columns."""
        return {
            "reason": self.reason,
            "detail": self.detail[:4096].replace("\0", "\ufffd"),
            "model_id": self.model_id,
            "inference_id": self.inference_id,
        }


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the topic, with all that is needed to read it again."""

    partition_id: PartitionId
    offset: int
    time: datetime
    key: bytes | None
    payload: bytes
    headers: Sequence[tuple[str, str]] = ()
    # its fault as a record, whatever its payload is; not stored
    fault: Rejection | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Its columns, in dead_letter and parked_event alike."""
        return {
            **self.partition_id.values,
            "offset": self.offset,
            "record_time": self.time,
            "record_key": self.key,
            "payload": self.payload,
            "headers": [list(header) for header in self.headers],
        }


def record_of(row: Any) -> Record:
    """Build a Record from a row of dead_letter or parked_event."""
    return Record(
        partition_id=PartitionId(row.cluster, row.topic, row.epoch, row.partition),
        offset=row.offset,
        time=row.record_time,
        key=row.record_key,
        payload=row.payload or b"",
        headers=tuple((name, value) for name, value in row.headers),
    )
