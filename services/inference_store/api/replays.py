"""Replays: jobs that send stored requests again, to another model or version, and what the answers
disagree in."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.export.jobs import (
    REPLAY,
    UNFINISHED,
    ExportJob,
    NewExport,
    find_job,
    list_jobs,
    move_job,
)
from inference_store.export.listing import describe_question
from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Conflict, NotFound
from inference_store.inference.field_docs import Body, ShortText
from inference_store.query.cql2 import FilterLang
from inference_store.replay.items import (
    STATES,
    ItemState,
    ReplayItem,
    ReplayPlan,
    count_items,
    list_items,
)

from . import fields
from .access import Access, Asking
from .answer import Answer, Shown
from .conditions import filter_field, read_requested_filter
from .dependencies import Reading, Writing, querying
from .export_requests import insert_export
from .fields import InQuery, PageAnswer, PageParameters, Window
from .http import OF_MODEL, ModelId
from .routing import Router

_KEPT: Final = timedelta(days=90)
_MOST: Final = 100_000
_COMPARED: Final[list[ItemState]] = ["compared"]


class ReplayTarget(Body):
    """The model that is to answer, as the proxy knows it."""

    model: ShortText
    """Its id, which is its name in calls; the caller must be able to read it."""
    version: ShortText | None = None
    """Its version, where the protocol can name one."""


class ReplayRequest(Body):
    """What to send again, and to which model."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"filter": "ok", "to": {"model": "faces-2"}, "sample": 0.1, "most": 500}]
        }
    )

    filter: Any = filter_field("Left out: every inference of the model.", "top_score < 0.5")
    filter_lang: FilterLang | None = None
    """The filter's language; left out: that of its JSON type."""
    received_at: Window | None = None
    """When the request came in; never after the replay was requested."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the matches that is sent: the same ones in every replay."""
    most: Annotated[int, Field(ge=1, le=_MOST)] = 1000
    """The most inferences that are sent, the oldest first."""
    to: ReplayTarget
    """Where they are sent."""
    rate: Annotated[float, Field(gt=0, le=100)] = 5.0
    """The most calls a second."""
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.001
    """How far numbers may be apart, relative to the larger one and in itself, to be equal."""


class ReplayCounts(Shown):
    """How many inferences there are of each kind."""

    listed: int
    """Still to be sent."""
    waiting: int
    """Sent, or being sent; the answer is not in the index yet."""
    compared: int
    missing: int
    """Sent, but not captured in time: left out by the proxy's sampling, or lost."""
    skipped: int
    """Not sent; `reasons` says why."""
    reasons: dict[str, int]
    """`not_kept`, `input_gone`, `too_large`, `unreadable`, `protocol` or `version`."""
    gone: int
    """Erased since they were listed."""
    cancelled: int
    """Listed or sent, and not compared, because the replay ended before."""


class ReplaySummary(Shown):
    """The differences of all that were compared."""

    disagreeing: int
    """That disagree in anything."""
    flips: int
    """With another top label."""
    outcomes: int
    """That succeed on one side alone."""
    versions: int
    """Answered by another version than the one that was asked for, as the answer says."""
    boxes_matched: int
    boxes_lost: int
    """Boxes that only the original has."""
    boxes_new: int
    """Boxes that only the replay has."""
    values_different: int
    texts_different: int
    latency_before: float | None
    """The median, in milliseconds."""
    latency_after: float | None
    tokens_before: int | None
    """All that are known; null: none is."""
    tokens_after: int | None


class ShownReplay(Shown):
    """A replay, and how far it is."""

    id: UUID
    model_id: str
    state: str
    """`pending`; `listing`: the matches are being listed; `sending`; `done`; `failed`;
    `cancelling`, `cancelled`; `expired`."""
    filter: str | None
    """As it was written; null: none, or `erased_by` took its values."""
    since: datetime | None
    until: datetime | None
    to: ReplayTarget
    sample: float
    most: int
    rate: float
    tolerance: float
    requested_by: str
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    """Why it failed, or waits."""
    erased_by: UUID | None
    """The erasure that removed the values of its filter."""
    inferences: int
    """That are to be sent, as far as they are listed."""
    counts: ReplayCounts
    summary: ReplaySummary


class ShownReplayItem(ReplayItem, Shown):
    """An inference that was sent again, and what its replay disagrees in."""

    disagreement: float | None
    """0: they agree. 2 if one of them failed, 1 for another top label, and up to 1 each for the
    share of boxes, values and texts that only one has."""
    difference: dict[str, Any] | None
    """`ok`, `label`, `score`, `version`, `latency_ms`, `tokens` have `before` and `after`; `boxes`
    counts those `matched`, `lost` and `new`; `values`, `texts` those `compared` and `different`."""


class DifferenceParameters(PageParameters):
    """Which members of a replay."""

    state: Annotated[list[ItemState], Field(max_length=len(STATES))] = Field(default=_COMPARED)
    """In this state; repeat it for several."""


router = Router("replays")
_ALL: Final = f"{OF_MODEL}/replays"
_ONE: Final = f"{_ALL}/{{replay_id}}"


@router.add(f"POST {_ALL}", Right.EXPORT, "Send inferences again", 409, status=202)
async def request_replay(
    model_id: ModelId, body: ReplayRequest, access: Asking
) -> Answer[ShownReplay]:
    """Send stored requests through the proxy to a model, and compare the answers. Needs
    `read_inputs` for this model too, and `read` for the other one."""
    now = datetime.now(UTC)
    async with querying(access) as connection:
        registration = await access.find_model(connection, model_id)
        access.require_right(Right.READ_INPUTS, registration)
        _require_proxy(access)
        target = await access.find_model(connection, body.to.model)
        filter = await read_requested_filter(body.filter, body.filter_lang, now=now)
        window = body.received_at or Window()
        document = await describe_question(
            connection,
            registration.model,
            filter.tree,
            text=filter.text,
            since=window.since,
            until=now if window.until is None else min(window.until, now),
            include=(),
        )
    is_same = target.model == registration.model
    plan = ReplayPlan(
        to_model=target.model,
        model=None if is_same else target.model_id,
        version=body.to.version,
        share=body.sample,
        most=body.most,
        rate=body.rate,
        tolerance=body.tolerance,
    )
    document |= {"replay": plan._asdict()}
    async with access.engine.begin() as connection:
        return await _insert(connection, access, registration, document)


@router.add(f"GET {_ALL}", Right.READ, "List replays")
async def list_replays(
    model_id: ModelId, page: InQuery[PageParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownReplay]:
    """The replays of a model's inferences, the newest first."""
    registration = await access.find_model(connection, model_id)
    jobs, has_more = await list_jobs(
        connection,
        model=registration.model,
        before=page.find_before(),
        limit=page.limit,
        replays=True,
    )
    following = fields.encode(*fields.by_time()(jobs[-1])) if has_more else None
    return PageAnswer(await _show(connection, jobs, registration), following)


@router.add(f"GET {_ONE}", Right.READ, "Follow a replay")
async def get_replay(
    model_id: ModelId, replay_id: UUID, connection: Reading, access: Asking
) -> Answer[ShownReplay]:
    """How far a replay is, and what its answers disagree in so far."""
    registration, job = await _find(connection, access, model_id, replay_id)
    return Answer((await _show(connection, [job], registration))[0])


@router.add(f"POST {_ONE}/cancel", Right.EXPORT, "Cancel a replay", 409, status=202)
async def cancel_replay(
    model_id: ModelId, replay_id: UUID, connection: Writing, access: Asking
) -> Answer[ShownReplay]:
    """Send nothing more. What was sent stays, and so do the differences."""
    registration, job = await _find(connection, access, model_id, replay_id, lock=True)
    if job.state not in UNFINISHED:
        raise Conflict(f"The replay is {job.state}: nothing more is sent.")
    await move_job(connection, replay_id, "cancelling")
    cancelled = Action.REPLAY_CANCELLED
    await access.note(connection, cancelled, registration, replay=str(replay_id))
    _, job = await _find(connection, access, model_id, replay_id)
    return Answer((await _show(connection, [job], registration))[0], status_code=202)


@router.add(f"POST {_ONE}/restart", Right.EXPORT, "Start a replay again", 409, status=202)
async def restart_replay(
    model_id: ModelId, replay_id: UUID, connection: Writing, access: Asking
) -> Answer[ShownReplay]:
    """Request the same replay again under a new id, once it has ended. Everything is sent again."""
    registration, job = await _find(connection, access, model_id, replay_id)
    access.require_right(Right.READ_INPUTS, registration)
    _require_proxy(access)
    names = await registrations.names(connection, [ReplayPlan.of(job).to_model])
    for name in names.values():
        await access.find_model(connection, name)
    if job.state in (*UNFINISHED, "cancelling"):
        raise Conflict(f"The replay is {job.state}: wait until it has ended, or cancel it.")
    if job.erased_by is not None or not names:
        why = "its filter was erased" if job.erased_by is not None else "its target was removed"
        raise Conflict(f"The replay cannot start again, because {why}: request a new one.")
    document = {name: value for name, value in job.document.items() if name != "keys"}
    return await _insert(connection, access, registration, document, restarts=str(job.id))


@router.add(
    f"GET {_ONE}/differences",
    Right.READ,
    "List what a replay disagrees in",
    order="those that disagree most first",
)
async def list_differences(
    model_id: ModelId,
    replay_id: UUID,
    page: InQuery[DifferenceParameters],
    connection: Reading,
    access: Asking,
) -> PageAnswer[ShownReplayItem]:
    """The inferences that were compared; with `state`, those that were not. Needs `read` for the
    model that answered too."""
    _, job = await _find(connection, access, model_id, replay_id)
    names = await registrations.names(connection, [ReplayPlan.of(job).to_model])
    for name in names.values():
        await access.find_model(connection, name)
    key = fields.decode(page.cursor, float, str)
    try:
        after = None if key is None else (key[0], UUID(key[1]))
    except ValueError:
        raise fields.refuse_cursor() from None
    limit = page.limit + 1
    rows = await list_items(connection, job.id, page.state, after=after, limit=limit)
    return page.answer(
        rows, ShownReplayItem.show, lambda row: (row.disagreement or 0.0, str(row.uid))
    )


def _require_proxy(access: Access) -> None:
    if access.settings.replay_proxy is None:
        remedy = "set INFERENCE_STORE_REPLAY_PROXY for the api and the retention service"
        raise Conflict(f"Replays are off: {remedy}.", at="to")


async def _find(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    replay_id: UUID,
    *,
    lock: bool = False,
) -> tuple[Registration, ExportJob]:
    registration = await access.find_model(connection, model_id)
    job = await find_job(connection, replay_id, lock=lock, replays=True)
    if job is None or job.model != registration.model:
        raise NotFound(f"There is no replay {replay_id} of the model {model_id}.")
    return registration, job


async def _insert(
    connection: AsyncConnection,
    access: Access,
    registration: Registration,
    document: dict[str, Any],
    **detail: Any,
) -> Answer[ShownReplay]:
    expires_at = datetime.now(UTC) + _KEPT
    new = NewExport(registration.model, REPLAY, document, access.who.actor, expires_at)
    job = await insert_export(connection, new)
    [shown] = await _show(connection, [job], registration)
    requested, to = Action.REPLAY_REQUESTED, shown.to.model
    await access.note(connection, requested, registration, replay=str(job.id), to=to, **detail)
    location = f"/v1/models/{registration.model_id}/replays/{job.id}"
    return Answer(shown, status_code=202, location=location)


async def _show(
    connection: AsyncConnection, jobs: Sequence[ExportJob], registration: Registration
) -> list[ShownReplay]:
    plans = {job.id: ReplayPlan.of(job) for job in jobs}
    names = await registrations.names(connection, {plan.to_model for plan in plans.values()})
    counted = await count_items(connection, [job.id for job in jobs])
    shown = []
    for job in jobs:
        plan, counts = plans[job.id], counted[job.id]
        asked = {name: job.document[name] for name in ("filter", "since", "until")}
        to = ReplayTarget(model=names.get(plan.to_model, "removed"), version=plan.version)
        there = sum(counts[state] for state in STATES if state != "erased")
        counts |= {"waiting": counts["waiting"] + counts["sending"], "gone": job.members - there}
        counts["cancelled"] = 0
        if job.state not in (*UNFINISHED, "cancelling"):
            left = counts["listed"] + counts["waiting"]
            counts |= {"listed": 0, "waiting": 0, "cancelled": left}
        about = asked | {
            "state": {"writing": "sending"}.get(job.state, job.state),
            "model_id": registration.model_id,
            "to": to,
            "sample": plan.share,
            **{name: getattr(plan, name) for name in ("most", "rate", "tolerance")},
            "inferences": job.members,
            "counts": ReplayCounts(**counts),
            "summary": ReplaySummary(**counts),
        }
        shown.append(ShownReplay.show(job, **about))
    return shown
