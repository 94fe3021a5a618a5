"""Changes of retention policies: what one would delete, who may make it, when it begins."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.erasure import policies
from inference_store.erasure.ledger import Body
from inference_store.erasure.policies import (
    PolicyOwner,
    PolicyVersion,
    ResolvedPolicy,
    RetentionPolicy,
)
from inference_store.erasure.policies.rules import is_never_longer
from inference_store.erasure.preview import preview, previews
from inference_store.erasure.preview.losses import Preview
from inference_store.export.ledger.member_lists import MemberLists
from inference_store.inference.errors import Fault, Invalid, PreconditionFailed
from inference_store.query.cql2 import Clock
from inference_store.query.cql2.tree import Node

from .access import Access
from .filters import read_filter
from .policies import check_allowed, describe_owner
from .schemas.policies import DecidedBy, ExampleLost, Losing, PolicyBody, WouldDelete

_MOST_PENDING: Final = 10
_AGELESS: Final = Clock(
    instead="the ages of a rule say how old something may be: `keep_inference`, `keep_response` and"
    " `keep_input`. A time that stays the same is written TIMESTAMP('2026-11-01T00:00:00Z')"
)


def check_owner(body: PolicyBody, owner: PolicyOwner) -> None:
    """Raise Invalid if the body is of another policy than the path: a path that a browser or a
    proxy rewrote would change a wider one."""
    for name, given, expected in (
        ("level", body.level, owner.level),
        ("id", body.id, owner.subject or None),
    ):
        if given != expected:
            message = (
                f"the path is that of {owner}: send {json.dumps(expected)}, or correct the path"
            )
            fault = Fault(name, message)
            raise Invalid(f"{name}: {message}.", faults=[fault])


async def read_trees(body: PolicyBody) -> list[Node | None]:
    """Return the trees of the rules' filters. Raises InvalidFilter, NotKept, with their path."""
    return [
        await read_filter(rule.filter, None, clock=_AGELESS, path=f"rules[{number}].filter")
        for number, rule in enumerate(body.rules)
    ]


async def estimate_policy(
    connection: AsyncConnection,
    access: Access,
    owner: PolicyOwner,
    body: PolicyBody | None,
    trees: list[Node | None],
    *,
    seconds: float,
) -> tuple[Preview, ResolvedPolicy | None]:
    """Return what the policy would delete today; None for `body`: if there were none."""
    await check_allowed(connection, access, owner)
    if body is None:
        return await preview.preview_policy(
            connection, owner, None, lists=MemberLists(), seconds=seconds
        ), None
    resolved = await policies.resolve_policy(
        connection, owner, list(body.list_requested_rules(trees)), body
    )
    lost = await preview.preview_policy(
        connection, owner, resolved.policy, lists=MemberLists(), seconds=seconds
    )
    warnings = (*resolved.warnings, *_warn_of_pending(lost.pending))
    return lost, replace(resolved, warnings=warnings)


def _warn_of_pending(pending: Sequence[PolicyVersion]) -> Iterator[str]:
    """Yield a warning for each of the first pending policies that the figures count as begun."""
    for version in pending[:_MOST_PENDING]:
        what = "The removal of the policy" if version.policy is None else "The policy"
        yield (
            f"{what} of {version.of} is pending until {version.effective_at.isoformat()}:"
            " `would_delete` counts it as if it had begun, and what it keeps is kept already."
        )
    if len(pending) > _MOST_PENDING:
        yield f"{len(pending) - _MOST_PENDING} more pending policies are counted."


async def build_entry(
    connection: AsyncConnection,
    access: Access,
    owner: PolicyOwner,
    resolved: ResolvedPolicy | None,
    body: PolicyBody | None,
    *,
    expected: int | None,
    grace_seconds: float,
    reason: str | None,
) -> Body:
    """Build the ledger's entry of a change, or raise what refuses it."""
    registration = await check_allowed(connection, access, owner, lock=True)
    policy = None if resolved is None else resolved.policy
    state = await policies.find_state(connection, owner)
    before = [version.policy for version in (state.in_force, state.pending) if version is not None]
    if _needs_override(policy, before):
        access.require_over(Right.OVERRIDE, owner.level, owner.subject, registration)
        if not reason:
            fault = Fault("reason", "say why the minimum age is undercut, shortened or taken away")
            raise Invalid("Going against a minimum age needs a reason.", faults=[fault])
    if body is not None and body.effective == "now":
        await _require_preview(connection, owner, body, state.revision)
        grace_seconds = 0.0
    return await policies.describe_change(
        connection, owner, policy, expected=expected, grace_seconds=grace_seconds, reason=reason
    )


def describe_request(body: PolicyBody) -> str:
    """Return the policy as it was requested: a token is bound to this."""
    return body.model_dump_json(exclude={"effective", "token", "reason"})


async def _require_preview(
    connection: AsyncConnection, owner: PolicyOwner, body: PolicyBody, revision: int
) -> None:
    if body.token is None:
        fault = Fault("token", "give the `token` that the preview of this policy answered")
        raise Invalid("A policy begins at once only where it was previewed.", faults=[fault])
    if not await previews.is_preview_of(
        connection, body.token, owner, revision, describe_request(body)
    ):
        raise PreconditionFailed(
            "the token is of another policy or older than an hour, or a policy was set since:"
            " preview it again"
        )


def _needs_override(policy: RetentionPolicy | None, before: list[RetentionPolicy | None]) -> bool:
    """Return whether the change goes below a minimum age, shortens one or removes one."""
    if policy is not None and policy.undercuts_minimum_age:
        return True
    minimum_ages = [
        policy_before.minimum_age for policy_before in before if policy_before is not None
    ]
    now = None if policy is None else policy.minimum_age
    return any(
        age is not None and (now is None or not is_never_longer(age, now)) for age in minimum_ages
    )


def show_would_delete(result: Preview) -> WouldDelete:
    """Make the answer about what would be deleted."""
    return WouldDelete(
        inferences=Losing.show(result.parts["inference"]),
        responses=Losing.show(result.parts["response"]),
        inputs=Losing.show(result.parts["input"]),
        more_than_now=result.fresh,
        exports=result.exports,
        partial=result.cut,
        examples=[
            ExampleLost.show(
                example, decided_by=example.of and show_rule(example.of, example.rule, example.name)
            )
            for example in result.examples
        ],
    )


def show_rule(owner: PolicyOwner, rule: int | None, name: str | None) -> DecidedBy:
    """Make the answer about which rule it is."""
    return DecidedBy(level=owner.level, rule=rule, name=name, **describe_owner(owner))
