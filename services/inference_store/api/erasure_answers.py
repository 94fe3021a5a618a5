"""Erasures as they are shown."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import AccessScope
from inference_store.erasure import quarantine
from inference_store.erasure.progress import Erasure, find_erasure, list_blocked, list_models
from inference_store.index import registrations
from inference_store.inference.errors import NotFound

from .access import Access
from .answer import Answer, Shown


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


class BlockedObject(Shown):
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


class HeldCount(Shown):
    """How many inferences, or events set aside, a legal hold keeps."""

    hold: UUID
    inferences: int


class WaivedHolds(Shown):
    """What stays although it was asked for."""

    by: str | None
    """Who gave it up."""
    held: list[HeldCount]
    """What has been given up so far, by the hold that kept it."""


class ShownErasure(Erasure, Shown):
    """One run of deletion."""

    model_id: str | None
    """Null: of several, in `model_ids`."""
    model_ids: list[str]
    cause: str  # type: ignore[assignment]  # a later version may have more, here and below
    """policy, request, expired_arrival, erased_again or orphans."""
    scope: str  # type: ignore[assignment]
    """`input` (the datum and what else of the request is kept), `response`, `inference`
    (everything) or `object` (objects of no inference)."""
    state: str  # type: ignore[assignment]
    """pending, marking, deleting_objects, verifying, deleting_rows, certifying, certified, deleted,
    failed, partly_held, giving_up, cancelling or cancelled."""
    progress: Progress
    rows: dict[str, int]
    """Rows that went, by table."""
    obstacles: list[BlockedObject]
    """The first hundred."""
    not_found: list[str]
    """In the answer that makes it: those of `inference_ids` that no inference has."""
    message: str | None
    """What else is to be said, such as that nothing matched."""
    decided_by: list[DecidingRule]  # type: ignore[assignment]
    """Of a policy's run: the rules and limits that let it expire."""
    given_up: WaivedHolds | None  # type: ignore[assignment]
    """What holds kept and is given up; null: nothing is."""


# Members of a request that nobody sent.
_INTERNAL = ("saved", quarantine.MEMBER)
_NOTHING = "Nothing that is stored matched: nothing was erased."


async def find_or_refuse(
    connection: AsyncConnection, erasure_id: UUID, within: AccessScope
) -> Erasure:
    """Return an erasure of models in the scope. Raises NotFound."""
    erasure = await find_erasure(connection, erasure_id, within=within)
    if erasure is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    return erasure


async def answer_requested(
    access: Access, erasure: Erasure, *, not_found: Sequence[str] = ()
) -> Answer[ShownErasure]:
    """Answer that an erasure was requested, and where it can be followed."""
    async with access.engine.connect() as connection:
        shown = await show_erasure(connection, erasure, not_found=not_found)
    return Answer(shown, status_code=202, location=f"/v1/erasures/{erasure.id}")


async def show_erasure(
    connection: AsyncConnection, erasure: Erasure, *, not_found: Sequence[str] = ()
) -> ShownErasure:
    """Make the answer about one erasure."""
    models = await list_models(connection, erasure)
    names = await registrations.names(connection, set(models))
    criteria = (
        None
        if erasure.asked is None
        else {name: value for name, value in erasure.asked.items() if name not in _INTERNAL}
    )
    waived = erasure.given_up
    holds = (waived or {}).get("holds", {}).items()
    held = [{"hold": hold, "inferences": number} for hold, number in holds]
    is_over = erasure.cause == "request" and erasure.state in {"deleted", "certified"}
    is_empty = not erasure.inferences and not any(erasure.table_rows.values())
    return ShownErasure.show(
        erasure,
        model_id=None if erasure.model is None else names.get(erasure.model),
        model_ids=sorted(names[model] for model in models if model in names),
        asked=criteria,
        rows=erasure.table_rows,
        progress=_show_progress(erasure),
        given_up=waived and {"by": waived["by"], "held": held},
        obstacles=await list_blocked(connection, erasure.id),
        not_found=not_found,
        message=_NOTHING if is_over and is_empty else None,
    )


def _show_progress(erasure: Erasure) -> Progress:
    done, rate = _count_done(erasure), _compute_rate(erasure)
    rest = max(0, erasure.marked - done - erasure.held)
    is_known = erasure.deleting_since is not None and rate
    return Progress(
        marked=erasure.marked,
        erased=done,
        held=erasure.held,
        left=rest,
        per_second=rate,
        seconds_left=round(rest / rate, 1) if is_known and rate else None,
    )


def _count_done(erasure: Erasure) -> int:
    return erasure.objects if erasure.scope == "object" else erasure.inferences


def _compute_rate(erasure: Erasure) -> float | None:
    if erasure.deleting_since is not None:
        since, done = erasure.deleting_since, _count_done(erasure)
    elif erasure.begun_at is not None:
        since, done = erasure.begun_at, erasure.marked
    else:
        return None
    seconds = ((erasure.finished_at or datetime.now(UTC)) - since).total_seconds()
    return round(done / seconds, 3) if seconds > 0 else None
