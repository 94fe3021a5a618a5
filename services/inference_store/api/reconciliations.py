"""Reconciliations: the bucket compared with the index."""

from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.index import registrations
from inference_store.index.registrations import refuse_model
from inference_store.inference.field_docs import Body, Flag, ShortText
from inference_store.operations.reconcile import orphans, stored_reports
from inference_store.operations.reconcile.stored_reports import Kind, Reconciliation

from . import fields
from .access import Asking, Needs, Over
from .answer import Answer, AnyText, Shown
from .dependencies import Reading, Writing
from .erasures import ShownErasure, answer_requested
from .fields import InQuery, PageAnswer, PageParameters
from .routing import Router


class ReconciliationRequest(Body):
    """What to compare."""

    model_id: ShortText | None = None
    """Left out: every model."""


class OrphanErasureRequest(Body):
    """Whether to erase a reconciliation's orphans."""

    dry_run: Flag = False
    """Whether to only count what would be erased."""


class ShownReconciliation(Reconciliation, Shown):
    """One comparison of the bucket with the index."""


class RequestedReconciliation(ShownReconciliation):
    """A comparison that was just requested."""

    warnings: list[str]


class FindingParameters(PageParameters):
    """Which page of which findings."""

    kind: Kind | None = None


class ShownFinding(Shown):
    """Something that only the bucket has, or only the index."""

    kind: Kind
    """`orphan`: an object without a row; `missing`: a row without its object; `unreadable`: an
    object that a rebuild could not read."""
    storage_key: AnyText
    model_id: str | None
    uid: UUID | None
    bytes: int | None
    modified_at: datetime | None
    state: str
    """`found`; of an orphan that was to be erased `erased`, `held` (a legal hold may keep it) or
    `kept` (it is not an orphan any more)."""
    detail: AnyText | None


router = Router("reconciliation")
_NEEDED = Needs(Right.ADMIN, Over.EVERYTHING)
_PATH = "/reconciliations"
_ESTIMATE: dict[int | str, dict[str, Any]] = {
    200: {"model": orphans.OrphanEstimate, "description": "What a `dry_run` estimates."}
}


@router.add(f"GET {_PATH}", _NEEDED, "List reconciliations")
async def list_reconciliations(
    page: InQuery[PageParameters], connection: Reading
) -> PageAnswer[ShownReconciliation]:
    """Comparisons of the bucket with the index, the newest first."""
    before = page.find_before()
    rows = await stored_reports.list_page(connection, before=before, limit=page.limit + 1)
    return page.answer(rows, ShownReconciliation.show)


@router.add(f"POST {_PATH}", _NEEDED, "Compare the bucket with the index", status=202)
async def request_reconciliation(
    body: ReconciliationRequest, connection: Writing, access: Asking
) -> Answer[RequestedReconciliation]:
    """Ask the retention service to compare them. A model that is not registered causes a warning,
    and the comparison fails unless the bucket has objects of it."""
    warnings, id = list[str](), body.model_id
    # what the bucket has of it is compared all the same: the registration may be what was lost
    if id is not None and not await registrations.find_by_ids(connection, [id]):
        unknown = await refuse_model(connection, id, access.sees)
        warnings = [f"{unknown.detail} If the bucket has no object of it either, this fails."]
    reconciliation = await stored_reports.request_reconciliation(
        connection, model_id=body.model_id, cause="request"
    )
    await access.note(
        connection,
        Action.RECONCILIATION_REQUESTED,
        reconciliation=str(reconciliation.id),
        asked_model_id=body.model_id,
    )
    shown = RequestedReconciliation.show(reconciliation, warnings=warnings)
    return Answer(shown, status_code=202, location=f"/v1{_PATH}/{reconciliation.id}")


@router.add(f"GET {_PATH}/{{reconciliation_id}}", _NEEDED, "Read a reconciliation")
async def get_reconciliation(
    reconciliation_id: UUID, connection: Reading
) -> Answer[ShownReconciliation]:
    """The progress of a comparison, and what it found."""
    return Answer(ShownReconciliation.show(await stored_reports.get(connection, reconciliation_id)))


@router.add(
    f"GET {_PATH}/{{reconciliation_id}}/findings",
    _NEEDED,
    "List what a reconciliation found",
    order="by kind and storage key",
)
async def list_findings(
    reconciliation_id: UUID, page: InQuery[FindingParameters], connection: Reading
) -> PageAnswer[ShownFinding]:
    """Objects without rows and rows without objects, by kind and storage key."""
    await stored_reports.get(connection, reconciliation_id)
    key = fields.decode(page.cursor, str, str)
    findings = await stored_reports.list_findings(
        connection,
        reconciliation_id,
        kind=page.kind,
        after=None if key is None else (key[0], key[1]),
        limit=page.limit + 1,
    )
    return page.answer(findings, ShownFinding.show, attrgetter("kind", "storage_key"))


@router.add(
    f"POST {_PATH}/{{reconciliation_id}}/erasures",
    Needs(Right.DELETE, Over.EVERYTHING),
    "Erase the orphans of a reconciliation",
    409,
    status=202,
    also=_ESTIMATE,
    answer=ShownErasure,
)
async def erase_orphans(
    reconciliation_id: UUID, body: OrphanErasureRequest, access: Asking
) -> Answer[ShownErasure] | Answer[orphans.OrphanEstimate]:
    """Erase the objects without a row that a reconciliation found. Each is checked again before it
    is deleted, and what a legal hold may keep stays. GET /v1/erasures/{id} shows the progress."""
    if body.dry_run:
        seconds = access.settings.query_timeout_seconds
        async with access.engine.connect() as connection:
            estimate = await orphans.estimate_orphans(
                connection, reconciliation_id, seconds=seconds
            )
        return Answer(estimate)
    erasure = await orphans.request_erasure(access.ledger, reconciliation_id, access.who)
    return await answer_requested(access, erasure)
