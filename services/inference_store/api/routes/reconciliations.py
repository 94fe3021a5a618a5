"""Reconciliations: the bucket compared with the index."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query

from inference_store.api import cursors, moments
from inference_store.api.access import Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer, named, text
from inference_store.api.dependencies import Reading, Writing
from inference_store.api.problems import refusals
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.reconciliations import (
    AskedReconciliation,
    FindingPage,
    FindingParameters,
    ReconciliationPage,
    ShownReconciliation,
)
from inference_store.store.access import Action
from inference_store.store.errors import NotFound
from inference_store.store.reconciling import reconciliations
from inference_store.store.reconciling.reconciliations import Finding, Reconciliation
from inference_store.store.rights import Right

router = APIRouter(route_class=GuardedRoute, tags=["reconciliation"])
_PATH = "/reconciliations"


@router.get(
    _PATH,
    response_model=ReconciliationPage,
    responses=refusals(),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="List reconciliations",
)
async def list_reconciliations(
    page: Annotated[PageParameters, Query()], connection: Reading
) -> Answer:
    """Comparisons of the bucket with the index, the newest first."""
    found = await reconciliations.listed(
        connection, before=moments.before(page), limit=page.limit + 1
    )
    items, following = cursors.cut(
        found, page.limit, lambda each: cursors.moment(each.requested_at, each.id)
    )
    return Answer({"items": [_shown(each) for each in items], "next": following})


@router.post(
    _PATH,
    status_code=202,
    response_model=ShownReconciliation,
    responses=refusals(400, 413),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="Compare the bucket with the index",
)
async def request_reconciliation(
    body: AskedReconciliation, connection: Writing, access: Asking
) -> Answer:
    """Ask the retention service to compare them."""
    found = await reconciliations.request(connection, model_id=body.model_id, cause="request")
    await access.note(
        connection,
        Action.RECONCILIATION_REQUESTED,
        reconciliation=str(found.id),
        asked_model_id=body.model_id,
    )
    headers = {"Location": f"/v1{_PATH}/{found.id}"}
    return Answer(_shown(found), status_code=202, headers=headers)


@router.get(
    f"{_PATH}/{{reconciliation_id}}",
    response_model=ShownReconciliation,
    responses=refusals(404),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="Read a reconciliation",
)
async def get_reconciliation(reconciliation_id: UUID, connection: Reading) -> Answer:
    """How far it is, and what it found."""
    found = await reconciliations.find(connection, reconciliation_id)
    if found is None:
        raise _nothing(reconciliation_id)
    return Answer(_shown(found))


@router.get(
    f"{_PATH}/{{reconciliation_id}}/findings",
    response_model=FindingPage,
    responses=refusals(404),
    openapi_extra=needs(Right.ADMIN, Over.EVERYTHING),
    summary="List what a reconciliation found",
)
async def list_findings(
    reconciliation_id: UUID, page: Annotated[FindingParameters, Query()], connection: Reading
) -> Answer:
    """Objects without rows and rows without objects, by kind and storage key."""
    if await reconciliations.find(connection, reconciliation_id) is None:
        raise _nothing(reconciliation_id)
    key = cursors.decode(page.cursor, str, str)
    found = await reconciliations.findings(
        connection,
        reconciliation_id,
        kind=page.kind,
        after=None if key is None else (key[0], key[1]),
        limit=page.limit + 1,
    )
    items, following = cursors.cut(found, page.limit, lambda each: (each.kind, each.storage_key))
    return Answer({"items": [_finding(each) for each in items], "next": following})


def _shown(one: Reconciliation) -> dict[str, Any]:
    return named(one) | {"model_id": text(one.model_id)}


def _finding(one: Finding) -> dict[str, Any]:
    return named(one) | {"storage_key": text(one.storage_key), "detail": text(one.detail)}


def _nothing(id: UUID) -> NotFound:
    return NotFound(f"There is no reconciliation {id}.")
