"""The inference event: the Kafka message that says an inference took place."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from .storage_key import StorageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a producer may say beyond the nine fields. None: not known, never guessed."""

    capture_id: UUID | None = None
    project_id: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    task_type: str | None = None
    protocol: str | None = None
    action: str | None = None
    ok: bool | None = None
    http_status: int | None = None
    grpc_code: int | None = None
    error: str | None = None
    trace_id: str | None = None
    data_hash: str | None = None
    data_size: int | None = None
    data_content_type: str | None = None
    width: int | None = None
    height: int | None = None
    batch_index: int | None = None
    batch_size: int | None = None


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceEvent:
    """A decoded event. Times are UTC, floored to microseconds; None where unset."""

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
