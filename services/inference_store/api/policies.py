"""Answers about retention policies, and checks who may read and set them."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api.answer import Answer
from inference_store.erasure import policies
from inference_store.erasure.policies import PolicyOwner, PolicyState, PolicyVersion
from inference_store.index.registrations import Registration
from inference_store.inference.errors import NotFound

from .access import Access
from .schemas.policies import ShownPolicy, ShownRule, ShownVersion
from .shown import Shown


async def check_allowed(
    connection: AsyncConnection, access: Access, owner: PolicyOwner, *, lock: bool = False
) -> Registration | None:
    """Raise NotFound or Forbidden unless the caller may do this with the policy; return its model,
    if it is a model's policy."""
    if owner.level == "model":
        return await access.find_model(connection, owner.subject, lock=lock)
    if owner.level == "project":
        await access.check_project(connection, owner.subject)
    return None


async def answer_policy(connection: AsyncConnection, owner: PolicyOwner) -> Answer:
    """Answer a policy. Raises NotFound if there is none."""
    state = await policies.find_state(connection, owner)
    version = state.in_force or state.pending
    if version is None:
        raise NotFound(f"There is no retention policy of {owner}: {_describe_fallback(owner)}.")
    return build_answer(show_state(owner, version, state, warnings=()), state.revision)


def show_state(
    owner: PolicyOwner, version: PolicyVersion, state: PolicyState, **more: Any
) -> ShownPolicy:
    """Make the answer about a policy of which this version is shown."""
    pending = None if state.pending is None else show_version(state.pending, state)
    description = _describe_version(version, state)
    return ShownPolicy.show(
        version, level=owner.level, pending=pending, **description, **describe_owner(owner), **more
    )


def build_answer(body: Shown, revision: int) -> Answer:
    """Build the answer, with the revision for If-Match."""
    return Answer(body, headers={"ETag": f'"{revision}"'})


def show_version(version: PolicyVersion, state: PolicyState) -> ShownVersion:
    """Make the answer about one version."""
    return ShownVersion.show(version, **_describe_version(version, state))


def _describe_version(version: PolicyVersion, state: PolicyState) -> dict[str, Any]:
    """Return the fields that a version does not have itself."""
    policy = version.policy
    rules = () if policy is None else policy.rules
    bounds = policies.Bounds() if policy is None else policy
    return {
        "state": _describe_state(version, state),
        "removed": policy is None,
        "rules": [
            ShownRule.show(rule, keep_input=rule.input, keep_response=rule.response)
            for rule in rules
        ],
        **{name: getattr(bounds, name) for name in policies.Bounds.model_fields},
        "updated_at": version.set_at,
    }


def describe_owner(owner: PolicyOwner) -> dict[str, str | None]:
    """Return the ids of the model or project whose policy it is."""
    return {f"{level}_id": owner.subject if owner.level == level else None for level in _NAMED}


_NAMED = ("model", "project")


def _describe_state(version: PolicyVersion, state: PolicyState) -> str:
    if version.revoked_at is not None:
        return "revoked"
    if version.effective_at > datetime.now(UTC) and version == state.pending:
        return "pending"
    begun = state.in_force is not None and version.revision == state.in_force.revision
    return "in_force" if begun else "past"


def _describe_fallback(owner: PolicyOwner) -> str:
    return {
        "model": "its project's and the default one apply, where there are any",
        "project": "the default one applies, where there is any",
        "default": "what no other policy says is kept for ever",
    }[owner.level]
