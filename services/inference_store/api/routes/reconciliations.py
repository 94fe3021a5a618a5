"""Reconciliations: the bucket compared with the index."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import cursors, time_pages
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import LedgerOf, Reading, Writing
from inference_store.api.erasure_format import show_erasure
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.erasures import ShownErasure
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.reconciliations import (
    AskedOrphans,
    AskedReconciliation,
    FindingPage,
    FindingParameters,
    ForetoldOrphans,
    ReconciliationPage,
    RequestedReconciliation,
    ShownFinding,
    ShownReconciliation,
)
from inference_store.index import registrations
from inference_store.index.registrations import refuse_model
from inference_store.inference.errors import NotFound
from inference_store.operations.reconcile import orphans, reconciliations

router = make_router("reconciliation")
_PATH = "/reconciliations"
_ESTIMATE: dict[int | str, dict[str, Any]] = {
    200: {"model": ForetoldOrphans, "description": "What would go, of a `dry_run`."}
}


@router.get(
    _PATH,
    response_model=ReconciliationPage,
    responses=document_refusals(),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="List reconciliations",
)
async def list_reconciliations(
    page: Annotated[PageParameters, Query()], connection: Reading
) -> Answer:
    """Comparisons of the bucket with the index, the newest first."""
    rows = await reconciliations.list_page(
        connection, before=time_pages.decode_before(page), limit=page.limit + 1
    )
    items, following = time_pages.cut_page(rows, page.limit)
    shown = [ShownReconciliation.show(row) for row in items]
    return Answer(ReconciliationPage(items=shown, next=following))


@router.post(
    _PATH,
    status_code=202,
    response_model=RequestedReconciliation,
    responses=document_refusals(400, 413),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="Compare the bucket with the index",
)
async def request_reconciliation(
    body: AskedReconciliation, connection: Writing, access: Asking
) -> Answer:
    """Ask the retention service to compare them. A model that is not registered is a warning: it
    fails unless the bucket has objects of it."""
    warnings = await _list_warnings(connection, access, body.model_id)
    reconciliation = await reconciliations.request_reconciliation(
        connection, model_id=body.model_id, cause="request"
    )
    await access.note(
        connection,
        Action.RECONCILIATION_REQUESTED,
        reconciliation=str(reconciliation.id),
        asked_model_id=body.model_id,
    )
    headers = {"Location": f"/v1{_PATH}/{reconciliation.id}"}
    shown = RequestedReconciliation.show(reconciliation, warnings=warnings)
    return Answer(shown, status_code=202, headers=headers)


@router.get(
    f"{_PATH}/{{reconciliation_id}}",
    response_model=ShownReconciliation,
    responses=document_refusals(404),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="Read a reconciliation",
)
async def get_reconciliation(reconciliation_id: UUID, connection: Reading) -> Answer:
    """How far it is, and what it found."""
    reconciliation = await reconciliations.find_reconciliation(connection, reconciliation_id)
    if reconciliation is None:
        raise _make_not_found(reconciliation_id)
    return Answer(ShownReconciliation.show(reconciliation))


@router.get(
    f"{_PATH}/{{reconciliation_id}}/findings",
    response_model=FindingPage,
    responses=document_refusals(404),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="List what a reconciliation found",
)
async def list_findings(
    reconciliation_id: UUID, page: Annotated[FindingParameters, Query()], connection: Reading
) -> Answer:
    """Objects without rows and rows without objects, by kind and storage key."""
    if await reconciliations.find_reconciliation(connection, reconciliation_id) is None:
        raise _make_not_found(reconciliation_id)
    key = cursors.decode(page.cursor, str, str)
    findings = await reconciliations.list_findings(
        connection,
        reconciliation_id,
        kind=page.kind,
        after=None if key is None else (key[0], key[1]),
        limit=page.limit + 1,
    )
    items, following = cursors.cut_page(
        findings, page.limit, lambda finding: (finding.kind, finding.storage_key)
    )
    shown = [ShownFinding.show(finding) for finding in items]
    return Answer(FindingPage(items=shown, next=following))


@router.post(
    f"{_PATH}/{{reconciliation_id}}/erasures",
    status_code=202,
    response_model=ShownErasure,
    responses=document_refusals(400, 404, 409, 413, also=_ESTIMATE),
    openapi_extra=needs(Right.DELETE, Over.EVERYTHING),
    summary="Erase the orphans of a reconciliation",
)
async def erase_orphans(
    reconciliation_id: UUID,
    body: AskedOrphans,
    request: Request,
    ledger: LedgerOf,
    access: Asking,
) -> Answer:
    """Erase the objects that a reconciliation found no row of: each is judged again before it goes,
    and what a legal hold may keep stays. GET /v1/erasures/{id} follows it."""
    engine: AsyncEngine = request.app.state.engine
    if body.dry_run:
        seconds = request.app.state.settings.query_timeout_seconds
        async with engine.connect() as connection:
            estimate = await orphans.estimate_orphans(
                connection, reconciliation_id, seconds=seconds
            )
        return Answer(ForetoldOrphans.show(estimate))
    erasure = await orphans.request_erasure(ledger, reconciliation_id, access.who)
    async with engine.connect() as connection:
        answer = await show_erasure(connection, erasure)
    return Answer(answer, status_code=202, headers={"Location": f"/v1/erasures/{erasure.id}"})


async def _list_warnings(
    connection: AsyncConnection, access: Access, model_id: str | None
) -> list[str]:
    """Return a warning if the model is not registered: what the bucket has of it is compared all
    the same, for the registration may be what was lost."""
    if model_id is None or await registrations.find_by_ids(connection, [model_id]):
        return []
    unknown = await refuse_model(connection, model_id, access.sees)
    return [f"{unknown.detail} If the bucket has no object of it either, this fails."]


def _make_not_found(id: UUID) -> NotFound:
    return NotFound(f"There is no reconciliation {id}.")
