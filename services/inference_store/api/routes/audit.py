"""Who did what, when, from where."""

from typing import Annotated

from fastapi import Query

from inference_store.access.rights import Right
from inference_store.api import cursors
from inference_store.api.access import Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.audit import AuditPage, AuditParameters, ShownEntry
from inference_store.index import audit

router = make_router("keys and audit")


@router.get(
    "/audit",
    response_model=AuditPage,
    responses=document_refusals(),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Read the audit",
)
async def list_audit(
    page: Annotated[AuditParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Every change and every read of an input, the newest first; what belongs to no model only
    where everything is administered."""
    chosen, before = page.chosen(access.scope), cursors.decode_one(page.cursor, int)
    entries = await audit.listed(connection, chosen, limit=page.limit + 1, before=before)
    items, following = cursors.cut_page(entries, page.limit, lambda entry: entry.id)
    return Answer(AuditPage(items=[ShownEntry.show(entry) for entry in items], next=following))
