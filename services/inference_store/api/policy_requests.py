"""Requests about one policy: a preview of what it would delete, and a change of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from inference_store.access import Action
from inference_store.erasure.ledger import Ledger, Note
from inference_store.erasure.policies import PolicyOwner, PolicyVersion, ResolvedPolicy
from inference_store.erasure.preview.preview import Preview
from inference_store.platform.settings import ApiSettings

from .access import Access, Asking
from .dependencies import IfMatch, LedgerOf, Settings, querying
from .policy_changes import build_entry, check_owner, estimate_policy, read_trees
from .policy_levels import PolicyOf
from .schemas.policies import PolicyBody

_SAVED: Final[Any] = {"rules": {"__all__": {"saved"}}}


@dataclass(frozen=True, slots=True)
class PolicyPreviewRequest:
    """A preview of what a policy would delete: the owner of the policy, and the caller."""

    request: Request
    to: ApiSettings
    access: Access
    of: PolicyOwner

    async def compute(self, body: PolicyBody | None) -> tuple[Preview, ResolvedPolicy | None]:
        """Return what it would delete today, and the policy as it is stored.

        `body` None: if there were none.
        """
        if body is not None:
            check_owner(body, self.of)
        trees = [] if body is None else await read_trees(body)
        seconds = self.to.policy_preview_seconds
        async with querying(self.request, self.access) as connection:
            return await estimate_policy(
                connection, self.access, self.of, body, trees, seconds=seconds
            )

    def find_grace_seconds(self, lost: Preview) -> float:
        """Return how many seconds it waits before it begins."""
        return 0.0 if lost.is_harmless else self.to.policy_grace_seconds


@dataclass(frozen=True, slots=True)
class PolicyChangeRequest(PolicyPreviewRequest):
    """A change of a policy. `expected`: the revision that it must have now."""

    ledger: Ledger
    expected: int | None

    async def write(
        self, kind: str, body: PolicyBody | None, reason: str | None
    ) -> tuple[Preview, Sequence[str]]:
        """Write it to the ledger before it takes effect; return what it deletes, and warnings.

        Raises what refuses it.
        """
        lost, resolved = await self.compute(body)
        build_body = partial(
            build_entry,
            access=self.access,
            owner=self.of,
            resolved=resolved,
            body=body,
            expected=self.expected,
            grace_seconds=self.find_grace_seconds(lost),
            reason=reason,
        )
        await self.ledger.write(kind, build_body, actor=self.access.who, note=_build_note)
        return lost, () if resolved is None else resolved.warnings


async def _make_preview(
    request: Request, to: Settings, access: Asking, of: PolicyOf
) -> PolicyPreviewRequest:
    return PolicyPreviewRequest(request, to, access, of)


PreviewRequest = Annotated[PolicyPreviewRequest, Depends(_make_preview)]


async def _make_change(
    look: PreviewRequest, ledger: LedgerOf, if_match: IfMatch
) -> PolicyChangeRequest:
    return PolicyChangeRequest(look.request, look.to, look.access, look.of, ledger, if_match)


ChangeRequest = Annotated[PolicyChangeRequest, Depends(_make_change)]


def _build_note(version: PolicyVersion) -> Note:
    """Build the audit's entry."""
    owner, policy = version.of, version.policy
    action = Action.POLICY_REMOVED if policy is None else Action.POLICY_SET
    rules = {} if policy is None else policy.model_dump(exclude_none=True, exclude=_SAVED)
    began = version.effective_at.isoformat()
    detail = {"level": owner.level, "revision": version.revision, "effective_at": began}
    whose = {"project_id": owner.subject} if owner.level == "project" else {}
    why = {} if version.reason is None else {"reason": version.reason}
    return Note(
        action, owner.subject if owner.level == "model" else None, detail | whose | why | rules
    )
