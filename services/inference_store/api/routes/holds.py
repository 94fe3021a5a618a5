"""Legal holds: placed, read, changed, released."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import cursors, time_pages
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import IfMatch, LedgerOf, Querying, Reading, Settings
from inference_store.api.hold_format import find_names, show_change, show_hold, show_placed
from inference_store.api.hold_requests import HoldRequest, read_request
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.holds import (
    HoldBody,
    HoldHistory,
    HoldPage,
    HoldParameters,
    PlacedHold,
    ReleaseParameters,
    ShownHeld,
    ShownHold,
)
from inference_store.api.schemas.links import PageParameters
from inference_store.erasure import holds
from inference_store.erasure.holds import Hold
from inference_store.erasure.holds.changes import Placement
from inference_store.erasure.holds.conditions import count_held
from inference_store.erasure.ledger import Body, Note
from inference_store.index import model_numbers
from inference_store.inference.errors import Conflict, NotFound, PreconditionFailed

router = make_router("legal holds")
_NEEDED = needs(Right.HOLD, Over.SOME)
_ONE = "/holds/{hold_id}"


@router.post(
    "/holds",
    status_code=201,
    response_model=PlacedHold,
    responses=document_refusals(400, 404, 409, 413),
    openapi_extra=_NEEDED,
    summary="Place a hold",
)
async def place_hold(body: HoldBody, ledger: LedgerOf, access: Asking, request: Request) -> Answer:
    """From this answer on nothing deletes what the hold keeps; what erasures had claimed before
    is listed in it."""
    hold_request = HoldRequest(access, body, await read_request(body))

    async def build_body(connection: AsyncConnection) -> Body:
        return await hold_request.build_entry(connection, uuid4(), revision=1)

    note = partial(_build_note_of, Action.HOLD_PLACED, body.model_id)
    placement = await ledger.write("hold_placed", build_body, actor=access.who, note=note)
    answer = await _show_placed(request, placement, hold_request.warnings)
    location = {"Location": f"/v1/holds/{placement.hold.id}", **_build_tag(placement.hold)}
    return Answer(answer, status_code=201, headers=location)


@router.get(
    "/holds",
    response_model=HoldPage,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="List holds",
)
async def list_holds(
    page: Annotated[HoldParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Holds, the newest first; ended and released ones too. Those of every model are shown to
    whoever has the right over everything."""
    model = None
    if page.model_id is not None:
        model = await _find_listed_model(connection, access, page.model_id)
    listed_holds = await holds.list_holds(
        connection,
        state=page.state,
        model=model,
        before=time_pages.decode_before(page),
        limit=page.limit + 1,
        within=access.scope,
    )
    items, following = time_pages.cut_page(listed_holds, page.limit, "placed_at")
    ids = await find_names(connection, [hold.model for hold in items])
    return Answer(HoldPage(items=[show_hold(hold, ids) for hold in items], next=following))


@router.get(
    _ONE,
    response_model=ShownHold,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Read a hold",
)
async def get_hold(hold_id: UUID, connection: Reading, access: Asking) -> Answer:
    """One hold."""
    return await _build_answer(connection, await _find_hold(connection, access, hold_id))


@router.put(
    _ONE,
    response_model=PlacedHold,
    responses=document_refusals(400, 404, 409, 412, 413),
    openapi_extra=_NEEDED,
    summary="Change a hold",
)
async def change_hold(  # noqa: PLR0917  (FastAPI calls it by name)
    hold_id: UUID,
    body: HoldBody,
    ledger: LedgerOf,
    if_match: IfMatch,
    access: Asking,
    request: Request,
) -> Answer:
    """Put another hold in its place, under the same id: what only the old one kept is let go."""
    hold_request = HoldRequest(access, body, await read_request(body))

    async def build_body(connection: AsyncConnection) -> Body:
        before = await _lock_unreleased(connection, access, hold_id, if_match)
        return await hold_request.build_entry(connection, hold_id, revision=before.revision + 1)

    note = partial(_build_note_of, Action.HOLD_CHANGED, body.model_id)
    placement = await ledger.write("hold_changed", build_body, actor=access.who, note=note)
    answer = await _show_placed(request, placement, hold_request.warnings)
    return Answer(answer, headers=_build_tag(placement.hold))


@router.delete(
    _ONE,
    response_model=ShownHold,
    responses=document_refusals(404, 409, 412),
    openapi_extra=_NEEDED,
    summary="Release a hold",
)
async def release_hold(  # noqa: PLR0917  (FastAPI calls it by name)
    hold_id: UUID,
    why: Annotated[ReleaseParameters, Query()],
    ledger: LedgerOf,
    if_match: IfMatch,
    access: Asking,
    request: Request,
) -> Answer:
    """Let go what it kept: policies apply again, and erasures that it held up go on. It stays
    listed, with its history."""
    model_id: str | None = None

    async def build_body(connection: AsyncConnection) -> Body:
        nonlocal model_id
        before = await _lock_unreleased(connection, access, hold_id, if_match)
        ids = await find_names(connection, [before.model])
        model_id = None if before.model is None else ids.get(before.model)
        return {"id": str(hold_id), "reason": why.reason, "revision": before.revision + 1}

    def build_note(hold: Hold) -> Note:
        return _build_note(Action.HOLD_RELEASED, model_id, hold, reason=why.reason)

    hold = await ledger.write("hold_released", build_body, actor=access.who, note=build_note)
    async with request.app.state.engine.connect() as connection:
        return await _build_answer(connection, hold)


@router.get(
    f"{_ONE}/history",
    response_model=HoldHistory,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Read a hold's history",
)
async def get_hold_history(
    hold_id: UUID, page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Every revision of a hold, the oldest first: what it was, when, and who made it so."""
    await _find_hold(connection, access, hold_id)
    after = cursors.decode_one(page.cursor, int)
    revisions = await holds.list_revisions(
        connection, hold_id, after=after or 0, limit=page.limit + 1
    )
    items, following = cursors.cut_page(revisions, page.limit, lambda revision: revision.revision)
    return Answer(HoldHistory(items=[show_change(revision) for revision in items], next=following))


@router.get(
    f"{_ONE}/held",
    response_model=ShownHeld,
    responses=document_refusals(404, 409),
    openapi_extra=_NEEDED,
    summary="Count what a hold keeps",
)
async def get_held(hold_id: UUID, connection: Querying, to: Settings, access: Asking) -> Answer:
    """What the hold matches of what is stored now, the newest looked at first, as far as time
    allows."""
    hold = await _find_hold(connection, access, hold_id)
    if hold.is_redacted:
        raise Conflict("The hold is over, and an erasure took its filter: it keeps nothing.")
    return Answer(
        ShownHeld.show(await count_held(connection, hold, seconds=to.query_timeout_seconds))
    )


async def _find_listed_model(connection: AsyncConnection, access: Access, model_id: str) -> int:
    """Return a model's integer.

    Callers with the right over everything can also list holds of an unregistered model.
    """
    expected = await model_numbers.number_of(connection, model_id)
    if expected is not None and access.scope.is_everything:
        return expected
    return (await access.find_model(connection, model_id)).model


async def _find_hold(connection: AsyncConnection, access: Access, hold_id: UUID) -> Hold:
    hold = await holds.find_hold(connection, hold_id, within=access.scope)
    if hold is None:
        raise NotFound(f"There is no hold {hold_id}.")
    return hold


async def _lock_unreleased(
    connection: AsyncConnection, access: Access, hold_id: UUID, revision: int | None
) -> Hold:
    """Return the hold, locked until it has changed.

    Raises NotFound, PreconditionFailed, Conflict.
    """
    hold = await holds.find_hold(connection, hold_id, within=access.scope, lock=True)
    if hold is None:
        raise NotFound(f"There is no hold {hold_id}.")
    if revision is not None and revision != hold.revision:
        raise PreconditionFailed(f"The hold has revision {hold.revision}, not {revision}.")
    if hold.released_at is not None:
        raise Conflict("The hold has been released: place another one.")
    return hold


def _build_note_of(action: Action, model_id: str | None, placement: Placement) -> Note:
    return _build_note(action, model_id, placement.hold)


def _build_note(action: Action, model_id: str | None, hold: Hold, **detail: Any) -> Note:
    # not its name, which may name a subject that was erased since
    return Note(action, model_id, {"hold": str(hold.id), "revision": hold.revision, **detail})


async def _show_placed(
    request: Request, placement: Placement, warnings: Sequence[str]
) -> PlacedHold:
    async with request.app.state.engine.connect() as connection:
        return await show_placed(connection, placement, warnings)


async def _build_answer(connection: AsyncConnection, hold: Hold) -> Answer:
    ids = await find_names(connection, [hold.model])
    return Answer(show_hold(hold, ids), headers=_build_tag(hold))


def _build_tag(hold: Hold) -> dict[str, str]:
    return {"ETag": f'"{hold.revision}"'}
