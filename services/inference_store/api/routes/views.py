"""Saved views: saved, listed, opened, changed, deleted."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import time_pages
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import IfMatch, Reading, Writing
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.saved_views import (
    answer_view,
    check_change,
    check_question,
    check_shared,
    list_view,
)
from inference_store.api.schemas.views import (
    ShownView,
    ViewBody,
    ViewChange,
    ViewPage,
    ViewParameters,
)
from inference_store.index import registrations, saved_views
from inference_store.index.registrations import Registration
from inference_store.index.saved_views import SavedView
from inference_store.inference.errors import NotFound

router = make_router("saved views")
_NEEDED = needs(Right.READ, Over.SOME)
_ONE = "/views/{view_id}"


@router.post(
    "/views",
    status_code=201,
    response_model=ShownView,
    responses=document_refusals(400, 404, 409, 413, 501),
    openapi_extra=_NEEDED,
    summary="Save a view",
)
async def save_view(body: ViewBody, connection: Writing, access: Asking) -> Answer:
    """Save a question about a model under a name: for yourself, or, with the right `annotate` over
    the model, for whoever may read it."""
    model = await access.find_model(connection, body.model_id)
    await _keep(connection, model)
    check_shared(access, model, body.shared)
    values = body.model_dump(exclude={"model_id"})
    await check_question(connection, model.model, values)
    id = await saved_views.add(connection, model, values, by=access.caller.name)
    return await _answer_changed(connection, access, Action.VIEW_SAVED, model, id, status=201)


@router.get(
    "/views",
    response_model=ViewPage,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="List saved views",
)
async def list_views(
    page: Annotated[ViewParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Your own views, and those of the projects of models that you may read, the newest first."""
    model = None
    if page.model_id is not None:
        model = (await access.find_model(connection, page.model_id)).model
    views = await saved_views.list_views(
        connection,
        by=access.caller.name,
        within=access.scope,
        model=model,
        shared=page.shared,
        before=time_pages.decode_before(page),
        limit=page.limit + 1,
    )
    items, following = time_pages.cut_page(views, page.limit, "created_at")
    return Answer(ViewPage(items=[list_view(access, view) for view in items], next=following))


@router.get(
    _ONE,
    response_model=ShownView,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Read a saved view",
)
async def get_view(view_id: UUID, connection: Reading, access: Asking) -> Answer:
    """One view, and what is wrong with it by now: a key that it names may be gone."""
    return await answer_view(connection, access, await _find(connection, access, view_id))


@router.patch(
    _ONE,
    response_model=ShownView,
    responses=document_refusals(400, 404, 409, 412, 413, 501),
    openapi_extra=_NEEDED,
    summary="Change a saved view",
)
async def change_view(
    view_id: UUID, body: ViewChange, connection: Writing, if_match: IfMatch, access: Asking
) -> Answer:
    """Change what is given, and nothing else. A view for a project needs the right `annotate` over
    its model."""
    model, view = await _lock(connection, access, view_id)
    given = body.values()
    check_change(access, view, given)
    saved_views.require_revision(view, if_match)
    await check_question(connection, model.model, given)
    await saved_views.change(connection, model, view, given, by=access.caller.name)
    return await _answer_changed(connection, access, Action.VIEW_CHANGED, model, view_id)


@router.delete(
    _ONE,
    status_code=204,
    response_class=Response,
    responses=document_refusals(404, 412),
    openapi_extra=_NEEDED,
    summary="Delete a saved view",
)
async def delete_view(
    view_id: UUID, connection: Writing, if_match: IfMatch, access: Asking
) -> Response:
    """Delete a view. One for a project needs the right `annotate` over its model."""
    model, view = await _lock(connection, access, view_id)
    check_shared(access, view, view.shared)
    saved_views.require_revision(view, if_match)
    await saved_views.remove(connection, view_id)
    await access.note(connection, Action.VIEW_DELETED, model, **_describe(view))
    return Response(status_code=204)


async def _find(
    connection: AsyncConnection, access: Access, view_id: UUID, *, lock: bool = False
) -> SavedView:
    by, within = access.caller.name, access.scope
    return await saved_views.find(connection, view_id, by=by, within=within, lock=lock)


async def _lock(
    connection: AsyncConnection, access: Access, view_id: UUID
) -> tuple[Registration, SavedView]:
    """Return a view, locked until the transaction ends, and its model. Raises NotFound."""
    model_id = (await _find(connection, access, view_id)).model_id
    model = await registrations.get(connection, model_id, within=access.sees)
    await _keep(connection, model)
    return model, await _find(connection, access, view_id, lock=True)


async def _keep(connection: AsyncConnection, model: Registration) -> None:
    """Lock the model against removal until the transaction ends. Raises NotFound if it is gone."""
    if not await registrations.keep(connection, [model.model]):
        raise NotFound(f"There is no model {model.model_id!r}.")


async def _answer_changed(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    action: Action,
    model: Registration,
    view_id: UUID,
    status: int = 200,
) -> Answer:
    view = await _find(connection, access, view_id)
    await access.note(connection, action, model, **_describe(view))
    return await answer_view(connection, access, view, status=status)


def _describe(view: SavedView) -> dict[str, Any]:
    # not its name, which may name a subject that was erased since
    return {"view": str(view.id), "shared": view.shared, "revision": view.revision}
