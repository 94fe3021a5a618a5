"""Erasures: every deletion is one; and dry runs, which estimate one."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID, uuid4

from pydantic import Field, model_validator
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import AccessScope, Action
from inference_store.access.rights import Right
from inference_store.erasure import batches, losses, quarantine, selection
from inference_store.erasure.ledger_entries import Note
from inference_store.erasure.losses import NO_LOSS, ErasedUid, Loss, UidPage
from inference_store.erasure.progress import (
    STATES,
    Erasure,
    State,
    find_erasure,
    find_erasures,
    list_blocked,
    list_models,
)
from inference_store.erasure.requests import Subject as SubjectCriteria
from inference_store.erasure.requests import (
    describe_filter,
    describe_ids,
    describe_subject,
    find_unknown_key,
    request_cancellation,
    request_waiver,
)
from inference_store.export.erased import MemberLists
from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.inference.errors import NotFound
from inference_store.inference.field_docs import Body, Flag, ShortText, Text, WrongField
from inference_store.query import lookup
from inference_store.query.cursor import unpin
from inference_store.query.deadline import Deadline

from . import fields
from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .conditions import (
    BodyLang,
    Ids,
    Models,
    RequestedFilter,
    choose_models,
    filter_field,
    read_requested_filter,
)
from .dependencies import Reading, Writing, querying
from .fields import InQuery, PageAnswer, PageParameters
from .http import OF_MODEL, ModelId
from .inference_models import Resolved
from .routing import Router

_ONE_OF = ("filter", "inference_ids", "subject")


class Subject(Body):
    """Whom inferences are about: a metadata key with a value."""

    key: Annotated[ShortText, Field(min_length=1, examples=["person_id"])]
    """The key, or the path into a JSON value."""
    type: Annotated[str, Field(max_length=32, examples=["string"])] | None = None
    """string, int, float, bool or timestamp. Left out: every type the key has been seen with."""
    value: Annotated[Text, Field(max_length=4096, examples=["p-1044"])]
    """The value, as text."""

    @property
    def subject(self) -> SubjectCriteria:
        """Return it as the store takes it."""
        return SubjectCriteria(self.key, self.type, self.value)


class ErasureRequest(Body):
    """What to erase: exactly one of `filter`, `inference_ids` and `subject`."""

    filter: Any = filter_field(
        "Every stored inference for which it is TRUE is erased.",
        "data_source = 'hallway-camera-feed' AND frame_number < 100",
    )
    filter_lang: BodyLang = None
    inference_ids: Ids | None = None
    """Ids, aliases, or `uid:<uuid>`."""
    subject: Subject | None = None
    """Everything about one subject, including dead letters and parked events."""
    dry_run: Flag = False
    """Whether to only count what would be erased."""
    uids: Flag = False
    """Whether a dry run also lists the uids that would be erased, page by page."""
    limit: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1000
    """The most uids in one answer."""
    cursor: Annotated[str, Field(max_length=1024)] | None = None
    """`next` of the previous answer, if it lists uids."""

    @model_validator(mode="after")
    def _lists_of_dry_runs(self) -> "ErasureRequest":
        if self.uids and not self.dry_run:
            raise WrongField("uids", "it lists what a dry run would erase: set `dry_run` too")
        paging = sorted({"limit", "cursor"} & self.model_fields_set)
        if paging and not self.uids:
            raise WrongField(paging[0], "it pages through the list of uids: set `uids` too")
        return self

    @model_validator(mode="after")
    def _exactly_one(self) -> "ErasureRequest":
        chosen = [name for name in _ONE_OF if getattr(self, name) is not None]
        if len(chosen) != 1:
            listed = " and ".join(chosen) or "none of them"
            message = f"give exactly one of {', '.join(_ONE_OF)}, not {listed}"
            raise WrongField(chosen[-1] if chosen else _ONE_OF[0], message)
        return self


class ErasureRequestAcross(Models, ErasureRequest):
    """What to erase, and of which models: of all without `project_id` and `model_ids`."""


class ModelErasureEstimate(Loss, Shown):
    """What would be erased of one model. What legal holds keep is counted in `held` only."""

    model_id: str


class EstimatedUid(Shown):
    """An inference that would be erased."""

    model_id: str
    uid: UUID


class ErasureEstimate(Resolved, ModelErasureEstimate):
    """What an erasure would erase; nothing was marked."""

    model_id: str | None  # type: ignore[assignment]
    """Null if there are several."""
    models: list[ModelErasureEstimate]
    """Each model of which something would be erased, is held, or is undecided."""
    exports: int
    """Exports that contain some of it. An erasure deletes the parts that do, and the exports become
    stale. Copies that were downloaded are not affected."""
    export_ids: list[UUID]
    """The first hundred of them."""
    not_found: list[str]
    """Those of `inference_ids` that no inference has."""
    uids: list[EstimatedUid] | None
    """With `uids`: a page of what would be erased, by model and then by time."""
    next: str | None
    """The `cursor` of the next page; null on the last one."""


class HoldWaiver(Body):
    """Why what holds keep is given up."""

    reason: Annotated[ShortText, Field(min_length=1, examples=["the case goes on for years"])]
    """For the audit."""


class ErasureParameters(PageParameters):
    """Which page of which erasures; everything that is given must hold."""

    state: Annotated[list[State], Field(max_length=len(STATES))] | None = None
    """In this state; repeat it for several."""
    model_id: ShortText | None = None
    """Of this model, also together with others."""


class Progress(Shown):
    """The progress of an erasure."""

    marked: int
    """What was found and hidden from every query."""
    erased: int
    held: int
    """What legal holds keep; queries show it again."""
    left: int
    per_second: float | None
    """Inferences erased a second, on average; while marking: marked."""
    seconds_left: float | None
    """At this rate; null until it is known how much there is."""


class BlockedObject(Shown):
    """An object that the object store refused to delete."""

    storage_key: str
    code: str
    message: str
    retry_at: datetime | None
    """When its lock ends; null if that is unknown, and every run tries again."""


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
    """What stays although its erasure was requested."""

    by: str | None
    """Who gave it up."""
    held: list[HeldCount]
    """What has been given up so far, by the hold that kept it."""


class ShownErasure(Erasure, Shown):
    """An erasure, and how far it has come."""

    model_id: str | None
    """Null if `model_ids` has several."""
    model_ids: list[str]
    cause: str  # type: ignore[assignment]  # a later version may have more, here and below
    """policy, request, expired_arrival, erased_again, replaced or orphans."""
    scope: str  # type: ignore[assignment]
    """`input` (the datum and what else of the request is kept), `response`, `inference`
    (everything), `truth` (ground truth that was replaced) or `object` (objects of no inference)."""
    state: str  # type: ignore[assignment]
    """pending, marking, deleting_objects, verifying, deleting_rows, certifying, certified, deleted,
    failed, partly_held, giving_up, cancelling or cancelled."""
    progress: Progress
    rows: dict[str, int]
    """Rows that went, by table."""
    obstacles: list[BlockedObject]
    """The first hundred."""
    not_found: list[str]
    """Those of `inference_ids` that no inference has; only in the answer to the request."""
    message: str | None
    """A remark, such as that nothing matched."""
    decided_by: list[DecidingRule]  # type: ignore[assignment]
    """The rules and limits by which it expired, if a policy is the cause."""
    given_up: WaivedHolds | None  # type: ignore[assignment]
    """What holds kept and was given up; null if nothing was."""


router = Router("retention")
_MOST_EXPORTS = 100
_READ = Needs(Right.READ, Over.SOME)
_NEEDED = Needs(Right.DELETE, Over.SOME)
_ESTIMATE: dict[int | str, dict[str, Any]] = {
    200: {"model": ErasureEstimate, "description": "What a `dry_run` estimates; nothing is erased."}
}


@router.add(
    f"POST {OF_MODEL}/erasures",
    Right.DELETE,
    "Erase by a filter, ids or a subject",
    501,
    status=202,
    also=_ESTIMATE,
)
async def request_erasure(
    model_id: ModelId, body: ErasureRequest, access: Asking
) -> Answer[ShownErasure]:
    """Erase the matching inferences of one model. The retention service marks them, which hides
    them from every query, and then deletes them. GET /v1/erasures/{id} shows the progress."""
    return await _answer(access, body, model_id)


@router.add(
    "POST /erasures", _NEEDED, "Erase over several models", 404, 501, status=202, also=_ESTIMATE
)
async def request_erasure_across(
    body: ErasureRequestAcross, access: Asking
) -> Answer[ShownErasure]:
    """Erase what matches of several models, of a project, or of all: one erasure."""
    return await _answer(access, body)


@router.add("POST /erasures/{erasure_id}/cancel", _NEEDED, "Cancel an erasure", 409, status=202)
async def cancel_erasure(
    erasure_id: UUID, connection: Writing, access: Asking
) -> Answer[ShownErasure]:
    """Cancel an erasure that has not begun to delete objects; afterwards the answer is 409. The
    marks are removed, so queries show the inferences again. The state is `cancelled` when that is
    done."""
    await find_or_refuse(connection, erasure_id, access.scope)
    erasure = await request_cancellation(connection, erasure_id)
    await access.note(connection, Action.ERASURE_CANCELLED, erasure=str(erasure_id))
    return Answer(await show_erasure(connection, erasure), status_code=202)


@router.add(
    "POST /erasures/{erasure_id}/give-up",
    _NEEDED,
    "Give up what holds keep of an erasure",
    409,
    status=202,
)
async def give_up_erasure(
    erasure_id: UUID, body: HoldWaiver, connection: Writing, access: Asking
) -> Answer[ShownErasure]:
    """End an erasure that is `partly_held`. What was erased stays erased, and what holds keep is
    not erased when they are released. The certificate states both. This cannot be undone."""
    await find_or_refuse(connection, erasure_id, access.scope)
    erasure = await request_waiver(connection, erasure_id, by=access.who.actor)
    await access.note(
        connection, Action.ERASURE_REST_GIVEN_UP, erasure=str(erasure_id), reason=body.reason
    )
    return Answer(await show_erasure(connection, erasure), status_code=202)


@router.add("GET /erasures", _READ, "List erasures", 404)
async def list_erasures(
    page: InQuery[ErasureParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownErasure]:
    """Erasures, the newest first."""
    model = None if page.model_id is None else await access.find_model(connection, page.model_id)
    erasures = await find_erasures(
        connection,
        model=None if model is None else model.model,
        states=page.state,
        before=page.find_before(),
        limit=page.limit + 1,
        within=access.scope,
    )
    items, following = page.cut(erasures, fields.by_time())
    shown = [await show_erasure(connection, erasure) for erasure in items]
    return PageAnswer(shown, following)


@router.add("GET /erasures/{erasure_id}", _READ, "Follow an erasure")
async def get_erasure(
    erasure_id: UUID, connection: Reading, access: Asking
) -> Answer[ShownErasure]:
    """The progress of an erasure."""
    erasure = await find_or_refuse(connection, erasure_id, access.scope)
    return Answer(await show_erasure(connection, erasure))


async def _answer(access: Access, body: ErasureRequest, model_id: str | None = None) -> Answer[Any]:
    async with querying(access) as connection:
        if isinstance(body, Models):
            models = await choose_models(connection, access, body)
        else:
            assert model_id is not None, "the path names it"
            models = [await access.find_model(connection, model_id)]
        names = {model.model: model.model_id for model in models}
        filter = await read_requested_filter(body.filter, body.filter_lang, cursor=body.cursor)
        if body.subject is not None:
            criteria = await _read_subject(connection, access, names, body)
        elif body.inference_ids is not None:
            criteria = describe_ids(body.inference_ids)
        else:
            assert filter.tree is not None, "one of the three is given"
            criteria = await describe_filter(connection, list(names), filter.tree, filter.text)
        if body.dry_run:
            not_found = await _list_not_found(connection, list(names), body.inference_ids or ())
            estimate = await _build_estimate(
                connection, access, names, criteria, body, filter=filter, not_found=not_found
            )
            return Answer(estimate)
    return await _request(access, models, criteria, body)


async def _request(
    access: Access, models: Sequence[Registration], criteria: dict[str, Any], body: ErasureRequest
) -> Answer[Any]:
    """Write the erasure to the ledger before it takes effect.

    Ids that are not found are searched in the first Postgres, because a replica that lags does not
    have the newest.
    """
    async with access.engine.connect() as connection:
        numbers = [model.model for model in models]
        not_found = await _list_not_found(connection, numbers, body.inference_ids or ())
    ids = [model.model_id for model in models]
    entry = batches.describe_request(uuid4(), ids, criteria)
    detail = {"erasure": entry["erasure"], "models": ids}
    note = Note(Action.ERASURE_REQUESTED, ids[0] if len(ids) == 1 else None, detail)
    erasure = await access.ledger.write("erasure_requested", entry, actor=access.who, note=note)
    return await answer_requested(access, erasure, not_found=not_found)


async def _list_not_found(
    connection: AsyncConnection, models: Sequence[int], inference_ids: Sequence[str]
) -> list[str]:
    """Return the ids that no model has. Raises NotFound if that is all of them."""
    rest = list(dict.fromkeys(inference_ids))
    for model in models:
        rest = await lookup.find_absent(connection, model, rest) if rest else rest
    if rest and len(rest) == len(set(inference_ids)):
        raise NotFound(f"There is no inference {rest[0]!r}, nor one with any other of these ids.")
    return rest


async def _read_subject(
    connection: AsyncConnection, access: Access, models: Mapping[int, str], body: ErasureRequest
) -> dict[str, Any]:
    """Return the criteria of an erasure of a subject, as `erasure.asked` has them.

    Raises UnknownKey if no model has seen the key, and no dead letter or parked event that the
    erasure reaches mentions the subject; else as `describe_subject` does.
    """
    assert body.subject is not None
    subject = body.subject.subject
    criteria = await describe_subject(connection, list(models), subject)
    # events of no registered model may be of any: only who may erase everything reaches them
    if access.scope.is_everything:
        is_of_all = isinstance(body, ErasureRequestAcross) and not (
            body.project_id is not None or body.model_ids is not None
        )
        criteria[quarantine.MEMBER] = "all" if is_of_all else "named"
    refusal = await find_unknown_key(connection, list(models), subject)
    if refusal is not None:
        deadline = Deadline.after(access.settings.query_timeout_seconds)
        if not await losses.has_events_of_subject(
            connection, access.blobs, models, criteria, deadline
        ):
            raise refusal
    return criteria


async def _build_estimate(
    connection: AsyncConnection,
    access: Access,
    models: Mapping[int, str],
    criteria: Mapping[str, Any],
    body: ErasureRequest,
    *,
    filter: RequestedFilter,
    not_found: Sequence[str],
) -> ErasureEstimate:
    deadline, blobs = Deadline.after(access.settings.query_timeout_seconds), access.blobs
    parts = [await selection.find_part(connection, model, criteria) for model in sorted(models)]
    going = [losses.list_requested(part) for part in parts]
    uid_page, lists = UidPage(None, None), MemberLists()
    if body.uids:
        after = _decode_cursor(None if body.cursor is None else unpin(body.cursor)[0])
        uid_page = await losses.list_uids(
            connection, going, after=after, limit=body.limit, deadline=deadline
        )
    count = partial(losses.count_requested, connection, blobs, deadline=deadline)
    by_model = {models[part.model]: await count(models[part.model], part) for part in parts}
    beside = await losses.count_unattributed(connection, blobs, models, criteria, deadline)
    total = beside
    for loss in by_model.values():
        total = total.add(**dict(loss))
    uids, last = uid_page.uids, uid_page.last
    all_exports = await losses.find_exports(connection, going, lists, deadline)
    return ErasureEstimate.show(
        total,
        model_id=next(iter(models.values())) if len(models) == 1 else None,
        partial=total.partial or uid_page.partial or not all_exports,
        exports=len(lists.exports),
        export_ids=sorted(lists.exports)[:_MOST_EXPORTS],
        models=[
            ModelErasureEstimate.show(loss, model_id=model_id)
            for model_id, loss in by_model.items()
            if loss != NO_LOSS
        ],
        not_found=not_found,
        uids=uids and [EstimatedUid(model_id=models[model], uid=uid) for model, uid in uids],
        next=last and filter.pin(fields.encode(last[0], str(last[1]))),
        **filter.answer_members,
    )


def _decode_cursor(cursor: str | None) -> ErasedUid | None:
    key = fields.decode(cursor, int, str)
    try:
        return None if key is None else (key[0], UUID(key[1]))
    except ValueError:
        raise fields.refuse_cursor("cursor") from None


# Members of a request that nobody sent.
_INTERNAL = ("saved", quarantine.MEMBER)
_NOTHING = "No stored inference matched: nothing was erased."


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
    done = erasure.objects if erasure.scope == "object" else erasure.inferences
    since, counted = erasure.begun_at, erasure.marked
    if erasure.deleting_since is not None:
        since, counted = erasure.deleting_since, done
    until = erasure.finished_at or datetime.now(UTC)
    seconds = 0 if since is None else (until - since).total_seconds()
    rate = round(counted / seconds, 3) if seconds > 0 else None
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
