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
from inference_store.api.erasure_format import show_erasure, show_page
from inference_store.api.erasure_subjects import read_subject
from inference_store.api.filters import RequestedFilter, read_requested_filter
from inference_store.api.model_selection import choose_models
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.erasure_list import ErasureParameters
from inference_store.api.schemas.erasures import (
    Deletion,
    ErasurePage,
    ErasureRequest,
    ErasureRequestAcross,
    Foretold,
    GivingUp,
    ShownErasure,
)
from inference_store.erasure.ledger import Ledger, Note
from inference_store.erasure.mark import batches
from inference_store.erasure.progress import find_erasure, find_erasures
from inference_store.erasure.requests import (
    describe_filter,
    describe_ids,
    request_cancellation,
    request_waiver,
)
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
    erasure_request = ErasureRequest(inference_ids=body.inference_ids)
    return await request_erasure(model_id, erasure_request, request, ledger, access)


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
    if await find_erasure(connection, erasure_id, within=access.scope) is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    erasure = await request_cancellation(connection, erasure_id)
    await access.note(connection, Action.ERASURE_CANCELLED, erasure=str(erasure_id))
    return Answer(await show_erasure(connection, erasure), status_code=202)


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
    if await find_erasure(connection, erasure_id, within=access.scope) is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    erasure = await request_waiver(connection, erasure_id, by=access.who.actor)
    await access.note(
        connection, Action.ERASURE_REST_GIVEN_UP, erasure=str(erasure_id), reason=body.reason
    )
    return Answer(await show_erasure(connection, erasure), status_code=202)


@router.get(
    "/erasures",
    response_model=ErasurePage,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List erasures",
)
async def list_erasures(
    page: Annotated[ErasureParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Erasures, the newest first."""
    model = None if page.model_id is None else await access.find_model(connection, page.model_id)
    erasures = await find_erasures(
        connection,
        model=None if model is None else model.model,
        states=page.state,
        before=time_pages.decode_before(page),
        limit=page.limit + 1,
        within=access.scope,
    )
    return Answer(await show_page(connection, erasures, page.limit))


@router.get(
    "/erasures/{erasure_id}",
    response_model=ShownErasure,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Follow an erasure",
)
async def get_erasure(erasure_id: UUID, connection: Reading, access: Asking) -> Answer:
    """How far an erasure is."""
    erasure = await find_erasure(connection, erasure_id, within=access.scope)
    if erasure is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    return Answer(await show_erasure(connection, erasure))


async def _answer(
    request: Request, ledger: Ledger, access: Access, body: ErasureRequest, find_models: _Models
) -> Answer:
    async with querying(request, access) as connection:
        models = await find_models(connection)
        names = {model.model: model.model_id for model in models}
        filter, body = await _read_filter(body)
        if body.subject is not None:
            state = request.app.state
            criteria = await read_subject(state, connection, access, names, body)
        else:
            criteria = await _read_request(connection, list(names), body, filter)
        if body.dry_run:
            not_found = await _list_not_found(connection, list(names), body.inference_ids or ())
            estimate = await build_estimate(
                request.app.state,
                connection,
                names,
                criteria,
                body,
                filter=filter,
                not_found=not_found,
            )
            return Answer(estimate)
    return await _request(request, ledger, access, models, criteria, body)


async def _request(  # noqa: PLR0917
    request: Request,
    ledger: Ledger,
    access: Access,
    models: Sequence[Registration],
    criteria: dict[str, Any],
    body: ErasureRequest,
) -> Answer:
    """Write the erasure to the ledger before it takes effect.

    Ids that are not found are searched in the first Postgres, because a replica that lags does not
    have the newest.
    """
    engine: AsyncEngine = request.app.state.engine
    async with engine.connect() as connection:
        numbers = [model.model for model in models]
        not_found = await _list_not_found(connection, numbers, body.inference_ids or ())
    ids = [model.model_id for model in models]
    entry = batches.describe_request(uuid4(), ids, criteria)
    detail = {"erasure": entry["erasure"], "models": ids}
    note = Note(Action.ERASURE_REQUESTED, ids[0] if len(ids) == 1 else None, detail)
    erasure = await ledger.write("erasure_requested", entry, actor=access.who, note=note)
    async with engine.connect() as connection:
        answer = await show_erasure(connection, erasure, not_found=not_found)
    return Answer(answer, status_code=202, headers={"Location": f"/v1/erasures/{erasure.id}"})


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
        return describe_ids(body.inference_ids)
    assert filter.tree is not None
    text = body.filter if isinstance(body.filter, str) else None
    is_text = body.filter_lang != "cql2-json"
    return await describe_filter(connection, models, filter.tree, text if is_text else None)


async def _list_not_found(
    connection: AsyncConnection, models: Sequence[int], inference_ids: Sequence[str]
) -> list[str]:
    """Return the ids that no model has. Raises NotFound if that is all of them."""
    rest = list(dict.fromkeys(inference_ids))
    for model in models:
        rest = await lookup.find_absent(connection, model, rest) if rest else rest
    if rest and len(rest) == len(set(inference_ids)):
        raise NotFound(f"There is no inference {rest[0]!r}, nor any other of these ids.")
    return rest
