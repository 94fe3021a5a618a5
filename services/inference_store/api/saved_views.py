"""Checks and answers of saved views: what may be saved, who may change one, what is wrong now."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.index.saved_views import SavedView, Shared
from inference_store.inference.errors import Conflict, Forbidden, Invalid, NotKept
from inference_store.query.preparation import QueryRequest, check_request
from inference_store.query.sort import resolve_sort

from .access import Access
from .access.request_access import OfModel
from .answer import Answer
from .filters import read_requested_filter
from .schemas.views import ListedView, ShownView, ViewFault


async def check_question(connection: AsyncConnection, model: int, given: Mapping[str, Any]) -> None:
    """Check the filter and the sort that are given. Raises what a query with them would raise."""
    if (text := given.get("filter")) is not None:
        filter = await read_requested_filter(text, "cql2-text")
        await check_request(connection, model, QueryRequest(filter=filter.tree, filter_text=text))
    if (sort := given.get("sort")) is not None:
        await resolve_sort(connection, model, sort)


def check_shared(access: Access, subject: OfModel, shared: Shared) -> None:
    """Raise Forbidden unless the caller may save, change and delete such views of the model."""
    if shared == "project":
        access.require_right(Right.ANNOTATE, subject)


def check_change(access: Access, view: SavedView, given: Mapping[str, Any]) -> None:
    """Raise Forbidden or Conflict unless the caller may change the view like this."""
    if view.erased_by is not None:
        raise Conflict(
            "An erasure took the view's name and filter: delete it, and save another one."
        )
    shared: Shared = given.get("shared", view.shared)
    for kind in {view.shared, shared}:
        check_shared(access, view, kind)
    if shared == "private" and view.created_by != access.caller.name:
        raise Forbidden("Only who saved the view makes it private again.")


async def answer_view(
    connection: AsyncConnection, access: Access, view: SavedView, *, status: int = 200
) -> Answer:
    """Answer a view, with what is wrong with it by now."""
    faults = [fault async for fault in _find_faults(connection, view)]
    shown = ShownView.show(view, may_change=_may_change(access, view), faults=faults)
    headers = {"ETag": f'"{view.revision}"'}
    if status == 201:
        headers["Location"] = f"/v1/views/{view.id}"
    return Answer(shown, status_code=status, headers=headers)


def list_view(access: Access, view: SavedView) -> ListedView:
    """Make the entry of a list."""
    return ListedView.show(view, may_change=_may_change(access, view))


def _may_change(access: Access, view: SavedView) -> bool:
    return view.shared == "private" or access.has_right(Right.ANNOTATE, view)


async def _find_faults(connection: AsyncConnection, view: SavedView) -> AsyncIterator[ViewFault]:
    for part in ("filter", "sort"):
        try:
            await check_question(connection, view.model, {part: getattr(view, part)})
        except (Invalid, NotKept) as refused:
            known = [name for fault in refused.faults for name in fault.known]
            yield ViewFault(part=part, detail=refused.detail, known=known)
