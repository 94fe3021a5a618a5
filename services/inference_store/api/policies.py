"""Formats retention policies for answers, and checks who may read and set them."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api.answer import Answer
from inference_store.erasure import policies
from inference_store.erasure.policies import Of, Standing, Version
from inference_store.index.registrations import Registration
from inference_store.inference.errors import NotFound

from .access import Access


async def check_allowed(
    connection: AsyncConnection, access: Access, of: Of, *, lock: bool = False
) -> Registration | None:
    """Raise NotFound or Forbidden unless the caller may do this with the policy; return its model,
    if it is a model's policy."""
    if of.level == "model":
        return await access.find_model(connection, of.subject, lock=lock)
    if of.level == "project":
        await access.check_project(connection, of.subject)
    return None


async def format_policy(
    connection: AsyncConnection, of: Of, *, warnings: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Format a policy. Raises NotFound if there is none."""
    standing = await policies.standing(connection, of)
    found = standing.in_force or standing.pending
    if found is None:
        raise NotFound(f"There is no retention policy of {of}: {_describe_fallback(of)}.")
    named = {f"{level}_id": of.subject if of.level == level else None for level in _NAMED}
    pending = None if standing.pending is None else format_version(standing.pending, standing)
    of_whom = {"level": of.level, **named}
    more = {"pending": pending, "warnings": list(warnings)}
    return of_whom | format_version(found, standing) | more


def build_answer(body: dict[str, Any], revision: int) -> Answer:
    """Build the answer, with the revision for If-Match."""
    return Answer(body, headers={"ETag": f'"{revision}"'})


def format_version(found: Version, standing: Standing) -> dict[str, Any]:
    """Format one version."""
    policy = found.policy
    rules = () if policy is None else policy.rules
    bounds = policies.Bounds() if policy is None else policy
    return {
        "revision": found.revision,
        "state": _describe_state(found, standing),
        "removed": policy is None,
        "rules": [
            {
                "name": rule.name,
                "filter": rule.filter,
                "keep_input": rule.input,
                "keep_response": rule.response,
                "keep_inference": rule.keep_inference,
            }
            for rule in rules
        ],
        **{name: getattr(bounds, name) for name in policies.Bounds.model_fields},
        "set_by": found.set_by,
        "updated_at": found.set_at,
        "effective_at": found.effective_at,
        "revoked_at": found.revoked_at,
        "revoked_by": found.revoked_by,
        "reason": found.reason,
    }


_NAMED = ("model", "project")


def _describe_state(found: Version, standing: Standing) -> str:
    if found.revoked_at is not None:
        return "revoked"
    if found.effective_at > datetime.now(UTC) and found == standing.pending:
        return "pending"
    begun = standing.in_force is not None and found.revision == standing.in_force.revision
    return "in_force" if begun else "past"


def _describe_fallback(of: Of) -> str:
    return {
        "model": "its project's and the default one apply, where there are any",
        "project": "the default one applies, where there is any",
        "default": "what no other policy says is kept for ever",
    }[of.level]
