"""Erasures as they are shown."""

from uuid import UUID

from inference_store.api.shown import Shown
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.verify.blocked_objects import BlockedObject


class Progress(Shown):
    """How far an erasure is."""

    marked: int
    """What was found and hidden from every query."""
    erased: int
    held: int
    """What legal holds keep, which is shown again."""
    left: int
    per_second: float | None
    """Inferences erased a second, on average; while marking: marked."""
    seconds_left: float | None
    """At this rate; null while it is not known how much there is."""


class Obstacle(Shown, of=BlockedObject, instead={"erasure": (), "seen_at": ()}):
    """An object that S3 would not let go."""


class DecidingRule(Shown):
    """A rule, or a limit, of one version of a policy."""

    level: str
    """model, project or default."""
    subject: str
    """The model's or the project's id; of the default empty."""
    version: int
    rule: int | None = None
    """Its place in the policy, from 0."""
    limit: str | None = None
    """max_inferences."""


class KeptByHold(Shown):
    """How many inferences, or events set aside, a legal hold keeps."""

    hold: UUID
    inferences: int


class GivenUp(Shown):
    """What stays although it was asked for."""

    by: str | None
    """Who gave it up."""
    held: list[KeptByHold]
    """What has been given up so far, by the hold that kept it."""


class ShownErasure(
    Shown,
    of=Erasure,
    instead={
        "model": ("model_id", "model_ids"),
        "marked": ("progress",),
        "held": (),
        "table_rows": ("rows",),
        "error": ("obstacles", "not_found", "message", "error"),
        "in_force_at": (),
    },
):
    """One run of deletion."""

    model_id: str | None
    """Null: of several, in `model_ids`."""
    model_ids: list[str]
    cause: str
    """policy, request, expired_arrival, erased_again or orphans."""
    scope: str
    """`input` (the datum and what else of the request is kept), `response`, `inference`
    (everything) or `object` (objects of no inference)."""
    state: str
    """pending, marking, deleting_objects, verifying, deleting_rows, certifying, certified, deleted,
    failed, partly_held, giving_up, cancelling or cancelled."""
    progress: Progress
    rows: dict[str, int]
    """Rows that went, by table."""
    obstacles: list[Obstacle]
    """The first hundred."""
    not_found: list[str]
    """In the answer that makes it: those of `inference_ids` that no inference has."""
    message: str | None
    """What else is to be said, such as that nothing matched."""
    decided_by: list[DecidingRule]
    given_up: GivenUp | None
    """What holds kept and is given up; null: nothing is."""


class ErasurePage(Shown):
    """Erasures, the newest first."""

    items: list[ShownErasure]
    next: str | None
