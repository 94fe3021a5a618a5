"""The inference event: the Kafka message that reports an inference."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from pydantic import StrictBool

from .field_types import DataHash, Id, Int32, Pixels, Position, Sentence, Size, TaskType, Word
from .storage_key import StorageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """The fields that a producer may add to the nine. None: unknown, never guessed.

    The types are those of the wire, which checks them; this class does not.
    """

    capture_id: UUID | None = None
    project_id: Id | None = None
    model_name: Word | None = None
    model_version: Word | None = None
    task_type: TaskType | None = None
    protocol: Word | None = None
    action: Word | None = None
    ok: StrictBool | None = None
    http_status: Int32 | None = None
    grpc_code: Int32 | None = None
    error: Sentence | None = None
    trace_id: Word | None = None
    data_hash: DataHash | None = None
    data_size: Size | None = None
    data_content_type: Word | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    batch_index: Position | None = None
    batch_size: Position | None = None


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceEvent:
    """A decoded event. Times are UTC, floored to microseconds; None if unset."""

    uid: UUID
    model_id: str
    inference_id: str
    received_at: datetime
    forwarded_at: datetime | None = None
    responded_at: datetime | None = None
    published_at: datetime | None = None
    data: StorageKey | None = None
    response: StorageKey | None = None
    metadata: StorageKey | None = None
    aliases: tuple[str, ...] = ()
    extras: Extras = NO_EXTRAS
    inline_metadata: bytes | None = field(default=None, repr=False)
    inline_response: bytes | None = field(default=None, repr=False)
    flags: tuple[str, ...] = ()
