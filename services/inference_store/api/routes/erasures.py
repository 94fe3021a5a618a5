"""Erasures: every deletion is one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeAlias
from uuid import UUID, uuid4

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import time_pages
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import LedgerOf, Reading, Writing, querying
from inference_store.api.erasure_estimate import build_estimate
from inference_store.api.erasure_format import format_erasure, format_page
from inference_store.api.filters import RequestedFilter, read_requested_filter
from inference_store.api.model_selection import choose_models
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.erasures import (
    Deletion,
    ErasurePage,
    ErasureRequest,
    ErasureRequestAcross,
    Foretold,
    GivingUp,
    ShownErasure,
)
from inference_store.api.schemas.links import PageParameters
from inference_store.erasure import erasures
from inference_store.erasure.erasures import chosen, entries
from inference_store.erasure.ledger import Ledger, Note
from inference_store.index.registrations import Registration
from inference_store.inference.errors import NotFound
from inference_store.query import cursor as cursors
from inference_store.query import lookup

_Models: TypeAlias = Callable[[AsyncConnection], Awaitable[Sequence[Registration]]]
router = make_router("retention")
_ESTIMATE: dict[int | str, dict[str, Any]] = {
    200: {"model": Foretold, "description": "What would go, of a `dry_run`: nothing was marked."}
}


@router.post(
    "/models/{model_id}/erasures",
    status_code=202,
    response_model=ShownErasure,
    responses=document_refusals(400, 404, 413, 501, also=_ESTIMATE),
    openapi_extra=needs(Right.DELETE),
    summary="Erase by a filter, ids or a subject",
)
async def request_erasure(
    model_id: ModelId, body: ErasureRequest, request: Request, ledger: LedgerOf, access: Asking
) -> Answer:
    """Erase what is stored of one model and matches. The retention service marks it, which hides
    it from every query, and then deletes it; GET /v1/erasures/{id} follows it."""

    async def models(connection: AsyncConnection) -> Sequence[Registration]:
        return [await access.find_model(connection, model_id)]

    return await _answer(request, ledger, access, body, models)


@router.post(
    "/models/{model_id}/inferences/delete",
    status_code=202,
    response_model=ShownErasure,
    responses=document_refusals(400, 404, 413),
    openapi_extra=needs(Right.DELETE),
    summary="Erase inferences by their ids",
)
async def delete_inferences(
    model_id: ModelId, body: Deletion, request: Request, ledger: LedgerOf, access: Asking
) -> Answer:
    """A short form of an erasure by `inference_ids`."""
    asked = ErasureRequest(inference_ids=body.inference_ids)
    return await request_erasure(model_id, asked, request, ledger, access)


@router.post(
    "/erasures",
    status_code=202,
    response_model=ShownErasure,
    responses=document_refusals(400, 404, 413, 501, also=_ESTIMATE),
    openapi_extra=needs(Right.DELETE, Over.SOME),
    summary="Erase over several models",
)
async def request_erasure_across(
    body: ErasureRequestAcross, request: Request, ledger: LedgerOf, access: Asking
) -> Answer:
    """Erase what matches of several models, of a project, or of all: one erasure."""

    async def models(connection: AsyncConnection) -> Sequence[Registration]:
        return await choose_models(connection, access, body)

    return await _answer(request, ledger, access, body, models)


@router.post(
    "/erasures/{erasure_id}/cancel",
    status_code=202,
    response_model=ShownErasure,
    responses=document_refusals(404, 409),
    openapi_extra=needs(Right.DELETE, Over.SOME),
    summary="Cancel an erasure",
)
async def cancel_erasure(erasure_id: UUID, connection: Writing, access: Asking) -> Answer:
    """Possible until the first object is being deleted: afterwards 409. The marks are taken away,
    and queries show the inferences again; `cancelled` when that is done."""
    if await erasures.find(connection, erasure_id, within=access.reach) is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    one = await erasures.cancel(connection, erasure_id)
    await access.note(connection, Action.ERASURE_CANCELLED, erasure=str(erasure_id))
    return Answer(await format_erasure(connection, one), status_code=202)


@router.post(
    "/erasures/{erasure_id}/give-up",
    status_code=202,
    response_model=ShownErasure,
    responses=document_refusals(400, 404, 409, 413),
    openapi_extra=needs(Right.DELETE, Over.SOME),
    summary="Give up what holds keep of an erasure",
)
async def give_up_erasure(
    erasure_id: UUID, body: GivingUp, connection: Writing, access: Asking
) -> Answer:
    """Of one that is `partly_held`: what went stays gone, what holds keep is not erased when they
    let go, and the erasure ends with a certificate that says both. There is no way back."""
    if await erasures.find(connection, erasure_id, within=access.reach) is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    one = await erasures.request_waiver(connection, erasure_id, by=access.who.actor)
    await access.note(
        connection, Action.ERASURE_REST_GIVEN_UP, erasure=str(erasure_id), reason=body.reason
    )
    return Answer(await format_erasure(connection, one), status_code=202)


@router.get(
    "/erasures",
    response_model=ErasurePage,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List erasures",
)
async def list_erasures(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Erasures, the newest first."""
    found = await erasures.listed(
        connection, before=time_pages.decode_before(page), limit=page.limit + 1, within=access.reach
    )
    return Answer(await format_page(connection, found, page.limit))


@router.get(
    "/erasures/{erasure_id}",
    response_model=ShownErasure,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Follow an erasure",
)
async def get_erasure(erasure_id: UUID, connection: Reading, access: Asking) -> Answer:
    """How far an erasure is."""
    erasure = await erasures.find(connection, erasure_id, within=access.reach)
    if erasure is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    return Answer(await format_erasure(connection, erasure))


async def _answer(
    request: Request, ledger: Ledger, access: Access, body: ErasureRequest, of: _Models
) -> Answer:
    async with querying(request, access) as connection:
        models = await of(connection)
        numbers = [each.model for each in models]
        filter, body = await _read_filter(body)
        asked = await _read_request(connection, numbers, body, filter)
        if body.dry_run:
            not_found = await _list_not_found(connection, numbers, body.inference_ids or ())
            names = {each.model: each.model_id for each in models}
            told = await build_estimate(request.app.state, connection, names, asked, body)
            if told["next"] is not None:
                told["next"] = filter.pin(told["next"])
            return Answer(told | {"not_found": not_found, **filter.told})
    return await _request(request, ledger, access, models, asked, body)


async def _request(  # noqa: PLR0917
    request: Request,
    ledger: Ledger,
    access: Access,
    models: Sequence[Registration],
    asked: dict[str, Any],
    body: ErasureRequest,
) -> Answer:
    """Write the erasure to the ledger before it takes effect.

    Ids that are not found are searched in the first Postgres, because a replica that lags does not
    have the newest.
    """
    engine: AsyncEngine = request.app.state.engine
    async with engine.connect() as connection:
        numbers = [each.model for each in models]
        not_found = await _list_not_found(connection, numbers, body.inference_ids or ())
    ids = [each.model_id for each in models]
    said = entries.requested(uuid4(), ids, asked)
    noted = {"erasure": said["erasure"], "models": ids}
    note = Note(Action.ERASURE_REQUESTED, ids[0] if len(ids) == 1 else None, noted)
    one = await ledger.write("erasure_requested", said, actor=access.who, note=note)
    async with engine.connect() as connection:
        told = await format_erasure(connection, one, not_found=not_found)
    return Answer(told, status_code=202, headers={"Location": f"/v1/erasures/{one.id}"})


async def _read_filter(body: ErasureRequest) -> tuple[RequestedFilter, ErasureRequest]:
    """Return the filter; of a list that continues, with the instant of its first page."""
    cursor, now = (None, None) if body.cursor is None else cursors.unpin(body.cursor)
    filter = await read_requested_filter(body.filter, body.filter_lang, now=now)
    return filter, body.model_copy(update={"cursor": cursor})


async def _read_request(
    connection: AsyncConnection,
    models: Sequence[int],
    body: ErasureRequest,
    filter: RequestedFilter,
) -> dict[str, Any]:
    if body.inference_ids is not None:
        return chosen.by_ids(body.inference_ids)
    if body.subject is not None:
        return await chosen.by_subject(connection, models, body.subject.subject)
    assert filter.tree is not None
    text = body.filter if isinstance(body.filter, str) else None
    is_text = body.filter_lang != "cql2-json"
    return await chosen.by_filter(connection, models, filter.tree, text if is_text else None)


async def _list_not_found(
    connection: AsyncConnection, models: Sequence[int], inference_ids: Sequence[str]
) -> list[str]:
    """Return the ids that no model has. Raises NotFound if that is all of them."""
    left = list(dict.fromkeys(inference_ids))
    for model in models:
        left = await lookup.find_absent(connection, model, left) if left else left
    if left and len(left) == len(set(inference_ids)):
        raise NotFound(f"There is no inference {left[0]!r}, nor any other of these ids.")
    return left
