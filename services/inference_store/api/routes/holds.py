"""Legal holds: placed, read, changed, released."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

from fastapi import APIRouter, Query
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api import cursors, moments
from inference_store.api.access import Access, Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import IfMatch, Reading, Writing
from inference_store.api.filters import read_filter
from inference_store.api.held import document, names, placed, shown
from inference_store.api.problems import refusals
from inference_store.api.schemas.holds import (
    HoldBody,
    HoldHistory,
    HoldPage,
    HoldParameters,
    PlacedHold,
    ReleaseParameters,
    ShownHold,
)
from inference_store.api.schemas.links import PageParameters
from inference_store.store import holds
from inference_store.store.access import Action
from inference_store.store.errors import (
    Conflict,
    Fault,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
)
from inference_store.store.holds import Hold, Made
from inference_store.store.registrations import Registration
from inference_store.store.rights import Right

router = APIRouter(route_class=GuardedRoute, tags=["legal holds"])
_NEEDED = needs(Right.HOLD, Over.SOME)
_ONE = "/holds/{hold_id}"


@router.post(
    "/holds",
    status_code=201,
    response_model=PlacedHold,
    responses=refusals(400, 404, 413),
    openapi_extra=_NEEDED,
    summary="Place a hold",
)
async def place_hold(body: HoldBody, connection: Writing, access: Asking) -> Answer:
    """From this answer on nothing deletes what the hold keeps; what erasures had claimed before
    is listed in it."""
    model, made = await _made(connection, access, body)
    entry = _entry(body, made, uuid4(), revision=1)
    found = await holds.apply_placed(connection, entry, datetime.now(UTC), access.caller.name)
    await _note(connection, access, Action.HOLD_PLACED, model, found.hold)
    answer = await placed(connection, found, made)
    location = {"Location": f"/v1/holds/{found.hold.id}", **_tag(found.hold)}
    return Answer(answer, status_code=201, headers=location)


@router.get(
    "/holds",
    response_model=HoldPage,
    responses=refusals(404),
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
        model = (await access.model(connection, page.model_id)).model
    found = await holds.listed(
        connection,
        state=page.state,
        model=model,
        before=moments.before(page),
        limit=page.limit + 1,
        within=access.reach,
    )
    items, following = cursors.cut(
        found, page.limit, lambda each: cursors.moment(each.placed_at, each.id)
    )
    ids = await names(connection, [each.model for each in items])
    return Answer({"items": [shown(each, ids) for each in items], "next": following})


@router.get(
    _ONE,
    response_model=ShownHold,
    responses=refusals(404),
    openapi_extra=_NEEDED,
    summary="Read a hold",
)
async def get_hold(hold_id: UUID, connection: Reading, access: Asking) -> Answer:
    """One hold."""
    return await _answer(connection, await _the_one(connection, access, hold_id))


@router.put(
    _ONE,
    response_model=PlacedHold,
    responses=refusals(400, 404, 409, 412, 413),
    openapi_extra=_NEEDED,
    summary="Change a hold",
)
async def change_hold(
    hold_id: UUID, body: HoldBody, connection: Writing, if_match: IfMatch, access: Asking
) -> Answer:
    """Put another hold in its place, under the same id: what only the old one kept is let go."""
    before = await _unreleased(connection, access, hold_id, if_match)
    model, made = await _made(connection, access, body)
    entry = _entry(body, made, hold_id, revision=before.revision + 1)
    found = await holds.apply_changed(connection, entry, datetime.now(UTC), access.caller.name)
    await _note(connection, access, Action.HOLD_CHANGED, model, found.hold)
    answer = await placed(connection, found, made)
    return Answer(answer, headers=_tag(found.hold))


@router.delete(
    _ONE,
    response_model=ShownHold,
    responses=refusals(404, 409, 412),
    openapi_extra=_NEEDED,
    summary="Release a hold",
)
async def release_hold(
    hold_id: UUID,
    why: Annotated[ReleaseParameters, Query()],
    connection: Writing,
    if_match: IfMatch,
    access: Asking,
) -> Answer:
    """Let go what it kept: policies apply again, and erasures that it held up go on. It stays
    listed, with its history."""
    before = await _unreleased(connection, access, hold_id, if_match)
    entry = {"id": str(hold_id), "reason": why.reason, "revision": before.revision + 1}
    found = await holds.apply_released(connection, entry, datetime.now(UTC), access.caller.name)
    ids = await names(connection, [found.model])
    model = None
    if found.model is not None and found.model in ids:
        model = await access.model(connection, ids[found.model])
    await _note(connection, access, Action.HOLD_RELEASED, model, found, reason=why.reason)
    return await _answer(connection, found)


@router.get(
    f"{_ONE}/history",
    response_model=HoldHistory,
    responses=refusals(404),
    openapi_extra=_NEEDED,
    summary="Read a hold's history",
)
async def get_hold_history(
    hold_id: UUID, page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Every revision of a hold, the oldest first: what it was, when, and who made it so."""
    await _the_one(connection, access, hold_id)
    after = cursors.after(page.cursor, int)
    found = await holds.history(connection, hold_id, after=after or 0, limit=page.limit + 1)
    items, following = cursors.cut(found, page.limit, lambda each: each.revision)
    return Answer({"items": [document(each) for each in items], "next": following})


async def _the_one(connection: AsyncConnection, access: Access, hold_id: UUID) -> Hold:
    found = await holds.find(connection, hold_id, within=access.reach)
    if found is None:
        raise NotFound(f"There is no hold {hold_id}.")
    return found


async def _unreleased(
    connection: AsyncConnection, access: Access, hold_id: UUID, revision: int | None
) -> Hold:
    """The hold, locked until it has changed. Raises NotFound, PreconditionFailed, Conflict."""
    found = await holds.find(connection, hold_id, within=access.reach, lock=True)
    if found is None:
        raise NotFound(f"There is no hold {hold_id}.")
    if revision is not None and revision != found.revision:
        raise PreconditionFailed(f"The hold has revision {found.revision}, not {revision}.")
    if found.released_at is not None:
        raise Conflict("The hold has been released: place another one.")
    return found


async def _made(
    connection: AsyncConnection, access: Access, body: HoldBody
) -> tuple[Registration | None, Made]:
    """The model, and the filter as it is kept. Raises what `holds.make` does, and Forbidden."""
    if body.until is not None and body.until <= datetime.now(UTC):
        fault = Fault("until", "it has passed: leave it out, or say a time to come")
        raise Invalid("The hold would keep nothing.", faults=[fault])
    model = None
    if body.model_id is not None:
        model = await access.model(connection, body.model_id, lock=True)
    elif not access.reach.is_everything:
        raise Forbidden("A hold of every model needs the rights `read` and `hold` over everything.")
    is_text = isinstance(body.filter, str) and body.filter_lang != "cql2-json"
    asked = holds.Asked(
        filter=await read_filter(body.filter, body.filter_lang),
        filter_text=body.filter if is_text else None,
        inference_ids=body.inference_ids,
        types=body.types,
    )
    number = None if model is None else model.model
    return model, await holds.make(connection, number, asked)


def _entry(body: HoldBody, made: Made, id: UUID, *, revision: int) -> dict[str, Any]:
    """What is written of it."""
    until = body.until
    return {
        "id": str(id),
        "name": body.name,
        "reason": body.reason,
        "model_id": body.model_id,
        "filter": made.text,
        "inference_ids": body.inference_ids,
        "until": None if until is None else until.astimezone(UTC).isoformat(),
        "revision": revision,
    }


async def _note(
    connection: AsyncConnection,
    access: Access,
    action: Action,
    model: Registration | None,
    found: Hold,
    **detail: Any,
) -> None:
    noted = {"hold": str(found.id), "name": found.name, "revision": found.revision, **detail}
    await access.note(connection, action, model, **noted)


async def _answer(connection: AsyncConnection, found: Hold) -> Answer:
    ids = await names(connection, [found.model])
    return Answer(shown(found, ids), headers=_tag(found))


def _tag(found: Hold) -> dict[str, str]:
    return {"ETag": f'"{found.revision}"'}
