"""Why an inference is kept, and until when."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedBy:
    """The rule that decides: of the policy of a level, by its number and name."""

    level: str
    model_id: str | None
    project_id: str | None
    rule: int | None
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit that applies to the model."""

    name: str
    most: int
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBy:
    """A legal hold."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDecision:
    """The rule that decides once everything pending has begun. What it keeps is kept already."""

    begins_at: datetime
    decided_by: DecidedBy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The rule that decides about an inference. A time is None if the part is kept for ever."""

    uid: UUID
    received_at: datetime
    decided_by: DecidedBy | None
    pending: PendingDecision | None
    input_goes_at: datetime | None
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    limits: tuple[Limit, ...]
    held_by: HeldBy | None
