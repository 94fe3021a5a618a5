"""Changes of retention policies: what one would delete, who may make it, when it begins."""

from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.api.schemas.policies import PolicyBody
from inference_store.erasure import policies
from inference_store.erasure.ledger import Body
from inference_store.erasure.policies import Of, Resolved, RetentionPolicy
from inference_store.erasure.policies.rules import never_longer
from inference_store.erasure.preview import preview, previews
from inference_store.erasure.preview.preview import WouldDelete
from inference_store.inference.errors import Fault, Invalid, PreconditionFailed
from inference_store.query.cql2 import Clock
from inference_store.query.cql2.tree import Node

from .access import Access
from .filters import read_filter
from .policies import check_allowed

_AGELESS: Final = Clock(
    instead="the ages of a rule say how old something may be: `keep_inference`, `keep_response` and"
    " `keep_input`. A time that stays the same is written TIMESTAMP('2026-11-01T00:00:00Z')"
)


async def read_trees(body: PolicyBody) -> list[Node | None]:
    """Return the trees of the rules' filters. Raises InvalidFilter, NotKept, with their path."""
    return [
        await read_filter(rule.filter, None, clock=_AGELESS, path=f"rules[{number}].filter")
        for number, rule in enumerate(body.rules)
    ]


async def estimate_policy(
    connection: AsyncConnection,
    access: Access,
    of: Of,
    body: PolicyBody | None,
    trees: list[Node | None],
    *,
    seconds: float,
) -> tuple[WouldDelete, Resolved | None]:
    """Return what the policy would delete today; None for `body`: if there were none."""
    await check_allowed(connection, access, of)
    if body is None:
        return await preview.would_delete(connection, of, None, seconds=seconds), None
    found = await policies.resolve(connection, of, list(body.asked(trees)), body)
    return await preview.would_delete(connection, of, found.policy, seconds=seconds), found


async def build_entry(
    connection: AsyncConnection,
    access: Access,
    of: Of,
    resolved: Resolved | None,
    body: PolicyBody | None,
    *,
    expected: int | None,
    grace_seconds: float,
    reason: str | None,
    unmeasured: int = 0,
) -> Body:
    """Build the ledger's entry of a change, or raise what refuses it.

    `unmeasured`: how many inferences of unknown size a limit of it applies to.
    """
    registration = await check_allowed(connection, access, of, lock=True)
    policy = None if resolved is None else resolved.policy
    standing = await policies.standing(connection, of)
    before = [e.policy for e in (standing.in_force, standing.pending) if e is not None]
    if _needs_override(policy, before):
        access.require_over(Right.OVERRIDE, of.level, of.subject, registration)
        if not reason:
            fault = Fault("reason", "say why the minimum age is undercut, shortened or taken away")
            raise Invalid("Going against a minimum age needs a reason.", faults=[fault])
    if body is not None and body.effective == "now":
        await _require_preview(connection, of, body, standing.revision)
        require_sizes(unmeasured)
        grace_seconds = 0.0
    return await policies.setting(
        connection, of, policy, expected=expected, grace_seconds=grace_seconds, reason=reason
    )


def describe_request(body: PolicyBody) -> str:
    """Return the policy as it was requested: a token is bound to this."""
    return body.model_dump_json(exclude={"effective", "token", "reason"})


async def _require_preview(
    connection: AsyncConnection, of: Of, body: PolicyBody, revision: int
) -> None:
    if body.token is None:
        fault = Fault("token", "give the `token` that the preview of this policy answered")
        raise Invalid("A policy begins at once only where it was previewed.", faults=[fault])
    if not await previews.is_of(connection, body.token, of, revision, describe_request(body)):
        raise PreconditionFailed(
            "the token is of another policy or older than an hour, or a policy was set since:"
            " preview it again"
        )


def require_sizes(unmeasured: int) -> None:
    """Raise Invalid if the sizes that a change depends on are not known."""
    if unmeasured:
        fault = Fault(
            "effective",
            f"the sizes of {unmeasured} inferences are not known yet, so that no preview says what"
            " goes: leave it out, and preview it again in the grace, while they are measured",
        )
        raise Invalid("A limit by bytes begins at once only over known sizes.", faults=[fault])


def _needs_override(policy: RetentionPolicy | None, before: list[RetentionPolicy | None]) -> bool:
    """Whether the change goes below a minimum age, shortens one or removes one."""
    if policy is not None and policy.undercuts_minimum_age:
        return True
    there = [each.minimum_age for each in before if each is not None]
    now = None if policy is None else policy.minimum_age
    return any(each is not None and (now is None or not never_longer(each, now)) for each in there)


def format_would_delete(found: WouldDelete) -> dict[str, Any]:
    """Format what would be deleted."""
    return {
        "inferences": _format_scope(found, "inference"),
        "responses": _format_scope(found, "response"),
        "inputs": _format_scope(found, "input"),
        "more_than_now": found.fresh,
        "partial": found.partial,
        "examples": [
            {
                "model_id": each.model_id,
                "uid": each.uid,
                "inference_id": each.inference_id,
                "received_at": each.received_at,
                "scope": each.scope,
                "decided_by": None
                if each.of is None
                else format_rule(each.of, each.rule, each.name),
            }
            for each in found.examples
        ],
    }


def format_rule(of: Of, rule: int | None, name: str | None) -> dict[str, Any]:
    """Format which rule it is."""
    whose = {f"{level}_id": of.subject if of.level == level else None for level in _NAMED}
    return {"level": of.level, **whose, "rule": rule, "name": name}


_NAMED = ("model", "project")


def _format_scope(found: WouldDelete, scope: Any) -> dict[str, Any]:
    part = found.parts[scope]
    return {
        "count": part.count,
        "bytes": part.bytes,
        "unknown_sizes": part.unknown_sizes,
        "held": part.held,
        "oldest": part.oldest,
        "newest": part.newest,
    }


__all__ = [
    "build_entry",
    "describe_request",
    "estimate_policy",
    "format_rule",
    "format_would_delete",
    "read_trees",
    "require_sizes",
]
