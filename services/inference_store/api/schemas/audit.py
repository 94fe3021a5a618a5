"""The audit."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from inference_store.access.audit import Action
from inference_store.access.rights import AccessScope
from inference_store.api.shown import Shown
from inference_store.index.audit import AuditEntry, Filter

from .fields import Instant, ShortText
from .links import PageParameters


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

    def chosen(self, within: AccessScope) -> Filter:
        """Return it as the store takes it."""
        return Filter(
            actor=self.actor,
            action=self.action,
            model_id=self.model_id,
            uid=self.uid,
            since=self.at_from,
            until=self.at_to,
            within=within,
        )


class ShownEntry(Shown, of=AuditEntry):
    """One thing that was done."""


class AuditPage(Shown):
    """Entries, the newest first."""

    items: list[ShownEntry]
    next: str | None
