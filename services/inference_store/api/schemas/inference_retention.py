"""Why an inference is kept."""

from datetime import datetime
from uuid import UUID

from inference_store.api.shown import Shown

from .policies import DecidedBy


class ShownLimit(Shown):
    """A limit that applies to the model."""

    name: str
    """`max_inferences`."""
    most: int
    level: str
    """Whose policy says it: `model`, `project` or `default`."""


class PendingRule(Shown):
    """The rule that decides once everything pending has begun."""

    begins_at: datetime
    decided_by: DecidedBy | None
    """Null: no rule is of it then, and it is kept."""


class HeldBy(Shown):
    """A legal hold."""

    id: UUID
    name: str


class ShownKept(Shown):
    """The rule that decides about an inference. A time is null where the part is kept for ever."""

    uid: UUID
    received_at: datetime
    decided_by: DecidedBy | None
    """Null: no rule is of it, and it is kept."""
    pending: PendingRule | None
    """Null: nothing that applies to the model is pending."""
    input_goes_at: datetime | None
    """From here on the next run takes it, unless a hold keeps it."""
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    limits: list[ShownLimit]
    """They may take it earlier."""
    held_by: HeldBy | None
    """The oldest hold that keeps it, whatever else is said here."""
