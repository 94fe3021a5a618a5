"""The audit: who did what, when, from where."""

from operator import attrgetter
from typing import Annotated
from uuid import UUID

from pydantic import Field

from inference_store.access.rights import Action, Right
from inference_store.index import audit
from inference_store.index.audit import AuditEntry, Filter
from inference_store.inference.field_docs import Instant, ShortText

from .access import Asking, Needs, Over
from .answer import Shown
from .dependencies import Reading
from .fields import InQuery, PageAnswer, PageParameters
from .routing import Router


class AuditParameters(PageParameters):
    """Which page of which entries; everything that is given must hold."""

    actor: ShortText | None = None
    """`key:<id>`, `oidc:<subject>`, `token`, `cli:<user>`, or `anyone`."""
    action: Action | None = None
    """What was done."""
    model_id: ShortText | None = None
    """To which model."""
    uid: UUID | None = None
    """To which inference."""
    at_from: Annotated[Instant | None, Field(description="Then or later.")] = None
    at_to: Annotated[Instant | None, Field(description="Before then.")] = None


class ShownAuditEntry(AuditEntry, Shown):
    """One thing that was done."""


router = Router("keys and audit")


@router.add("GET /audit", Needs(Right.ADMIN, Over.SOME), "Read the audit")
async def list_audit(
    page: InQuery[AuditParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownAuditEntry]:
    """Every change and every read of an input, the newest first; what belongs to no model only
    where everything is administered."""
    chosen = Filter(within=access.scope, **page.model_dump(exclude={"limit", "cursor"}))
    before = page.find_after(int)
    entries = await audit.listed(connection, chosen, limit=page.limit + 1, before=before)
    return page.answer(entries, ShownAuditEntry.show, attrgetter("id"))
