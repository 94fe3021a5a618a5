"""Why an inference is kept."""

from uuid import UUID

from inference_store.api.shown import Shown
from inference_store.erasure.preview.explanation import PendingDecision, RetentionExplanation

from .policies import DecidedBy


class ShownLimit(Shown):
    """A limit that applies to the model."""

    name: str
    """`max_inferences`."""
    most: int
    level: str
    """Whose policy says it: `model`, `project` or `default`."""


class PendingRule(Shown, of=PendingDecision):
    """The rule that decides once everything pending has begun."""

    decided_by: DecidedBy | None


class HeldBy(Shown):
    """A legal hold."""

    id: UUID
    name: str


class ShownKept(Shown, of=RetentionExplanation, instead={"received_at": ("uid", "received_at")}):
    """The rule that decides about an inference. A time is null where the part is kept for ever."""

    uid: UUID
    decided_by: DecidedBy | None
    pending: PendingRule | None
    limits: list[ShownLimit]
    held_by: HeldBy | None
