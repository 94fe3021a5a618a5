"""Erasures as they are shown."""

from datetime import datetime
from typing import Any
from uuid import UUID

from inference_store.api.shown import Shown


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


class Obstacle(Shown):
    """An object that S3 would not let go."""

    storage_key: str
    code: str
    message: str
    retry_at: datetime | None
    """When its lock ends; null: nobody says, and every run tries again."""


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


class ShownErasure(Shown):
    """One run of deletion."""

    id: UUID
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
    run: UUID | None
    asked: dict[str, Any] | None
    """`filter`, `inference_ids`, `subject` or `report` (a reconciliation), as it was asked; null:
    it was marked as it was made. When it is over the subject's value is forgotten, and of ids their
    number stays (`ids`)."""
    requested_at: datetime
    requested_by: str | None
    begun_at: datetime | None
    deleting_since: datetime | None
    """From here on it cannot be cancelled."""
    finished_at: datetime | None
    retry_at: datetime | None
    progress: Progress
    inferences: int
    objects: int
    versions: int
    """Versions and delete markers that went, where the bucket keeps them."""
    bytes: int
    """Of the objects that went."""
    rows: dict[str, int]
    """Rows that went, by table."""
    oldest: datetime | None
    """When the oldest and the newest of what went were received."""
    newest: datetime | None
    obstacles: list[Obstacle]
    """The first hundred."""
    not_found: list[str]
    """In the answer that makes it: those of `inference_ids` that no inference has."""
    message: str | None
    """What else is to be said, such as that nothing matched."""
    error: str | None
    certificate: int | None
    """Number of its newest certificate: `GET /v1/certificates/{number}`."""
    decided_by: list[DecidingRule]
    """Of a policy's run: the rules and limits that let it expire."""
    given_up: GivenUp | None
    """What holds kept and is given up; null: nothing is."""


class ErasurePage(Shown):
    """Erasures, the newest first."""

    items: list[ShownErasure]
    next: str | None
