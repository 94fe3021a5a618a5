"""Retention policies of a model, of a project, and of all: their routes, bodies and answers."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID

from fastapi import Depends, Request
from pydantic import Field, model_validator
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure import policies, preview
from inference_store.erasure.ledger_entries import Body, Note
from inference_store.erasure.policies import (
    DEFAULT,
    MOST_RULES,
    Ages,
    Bounds,
    EffectiveRule,
    LevelName,
    PolicyOwner,
    PolicyState,
    PolicyVersion,
    RequestedRule,
    ResolvedPolicy,
    RetentionPolicy,
)
from inference_store.erasure.policies.effective_policy import (
    check_not_empty,
    check_rules,
    is_never_longer,
)
from inference_store.erasure.preview import Preview
from inference_store.export.erased import MemberLists
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Invalid, NotFound, PreconditionFailed
from inference_store.inference.field_docs import ShortText
from inference_store.query.cql2 import Clock
from inference_store.query.cql2.tree import Node

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .conditions import filter_field, read_filter
from .dependencies import IfMatch, Reading, querying
from .fields import InQuery, PageAnswer, PageParameters, Parameters
from .http import ModelId, ProjectId
from .routing import Endpoint, Router


class RuleBody(Ages):
    """A rule: what it applies to, and how long each part is kept."""

    filter: Any = filter_field(
        "The first rule whose filter is TRUE decides; a rule without a filter applies to all.",
        "top_score < 0.4",
    )
    types: Annotated[dict[ShortText, ShortText], Field(max_length=32)] = Field(
        default={},
        description="Types of metadata keys in the filter that no inference has yet.",
        examples=[{"reviewed": "bool"}],
    )


class PolicyBody(Bounds):
    """A policy. The first rule whose filter is TRUE decides; if none is, the next wider policy
    does."""

    level: LevelName
    """Whose policy it is, as in the path: what was sent to another path by mistake is refused."""
    id: ShortText | None
    """The id of the model or project, as in the path but not escaped; null for the default."""
    rules: Annotated[tuple[RuleBody, ...], Field(max_length=MOST_RULES)] = ()
    reason: ShortText | None = None
    """Why, for the history; required if a minimum age is undercut, shortened or removed."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_rules([(rule.name, rule.filter is not None) for rule in self.rules])
        check_not_empty(len(self.rules), self)
        return self

    effective: Literal["now"] | None = None
    """`now` skips the grace period, and needs the `token` of a preview."""
    token: UUID | None = None
    """From a preview of this same policy, at most an hour old."""


class Reason(Parameters):
    """Why."""

    reason: ShortText | None = None
    """Required if a minimum age is removed."""


class ShownRule(Shown):
    """What a rule applies to, and how long the parts are kept."""

    name: str | None = None
    filter: str | None = None
    """In CQL2-Text; null for everything."""
    keep_input: str
    keep_response: str
    keep_inference: str


class ShownPolicyVersion(Shown):
    """One version of a policy."""

    revision: int
    state: str
    """`in_force`, `pending` (it begins at `effective_at`), `revoked` before it began, or `past`."""
    removed: bool
    """Whether this version removed the policy."""
    rules: list[ShownRule]
    max_inferences: int | None
    minimum_age: str | None
    undercuts_minimum_age: bool
    set_by: str
    updated_at: datetime
    effective_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    reason: str | None


class LossCount(Shown):
    """How many inferences lose something. What is being erased already is not counted."""

    count: int
    bytes: int
    """Of their inputs, as far as sizes are known. Sizes of responses are not."""
    unknown_sizes: int
    held: int
    """Further inferences, which legal holds keep."""
    oldest: datetime | None
    newest: datetime | None


class DecidedBy(Shown):
    """A rule, and the policy that it is in."""

    level: str
    model_id: str | None
    project_id: str | None
    rule: int | None
    """Its place in the policy, from 0."""
    name: str | None


class LossExample(Shown):
    """One of the oldest that would lose something."""

    model_id: str
    uid: UUID
    inference_id: str
    received_at: datetime
    scope: str
    """`inference` (everything), `response` or `input`."""
    decided_by: DecidedBy | None
    """Null for a limit."""


class WouldDelete(Shown):
    """What a policy would delete today, together with the policies around it."""

    inferences: LossCount
    """Inferences that would be deleted as a whole."""
    responses: LossCount
    inputs: LossCount
    more_than_now: int
    """Inferences that lose something that the policies in force would keep."""
    exports: int
    """Exports that contain something that would be deleted: their parts that do are deleted too."""
    partial: bool
    """Whether time ran out before everything was counted, so that there may be more."""
    examples: list[LossExample]


class PolicyPreview(Shown):
    """What setting a policy would do."""

    would_delete: WouldDelete
    grace_seconds: float
    """How long after it is set the policy would begin."""
    token: UUID
    """Lets this policy begin at once. Valid for an hour, unless another policy is set meanwhile."""
    warnings: list[str]


class ShownPolicy(ShownPolicyVersion):
    """The policy that is in force, or else the one that is pending."""

    level: str
    """`model`, `project` or `default`: whose policy it is."""
    model_id: str | None
    project_id: str | None
    pending: ShownPolicyVersion | None
    """The version that begins later, unless it is revoked."""
    warnings: list[str]
    would_delete: WouldDelete | None = None
    """What it would delete today; only in the answer to setting it."""


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


def show_state(
    owner: PolicyOwner, version: PolicyVersion, state: PolicyState, **more: Any
) -> ShownPolicy:
    """Make the answer about a policy of which this version is shown."""
    pending = None if state.pending is None else show_version(state.pending, state)
    whose = {name: getattr(owner, name) for name in ("level", "model_id", "project_id")}
    description = _describe_version(version, state)
    return ShownPolicy.show(version, pending=pending, **description, **whose, **more)


def show_version(version: PolicyVersion, state: PolicyState) -> ShownPolicyVersion:
    """Make the answer about one version."""
    return ShownPolicyVersion.show(version, **_describe_version(version, state))


def _describe_version(version: PolicyVersion, state: PolicyState) -> dict[str, Any]:
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


def _describe_state(version: PolicyVersion, state: PolicyState) -> str:
    if version.revoked_at is not None:
        return "revoked"
    if version.effective_at > datetime.now(UTC) and version == state.pending:
        return "pending"
    begun = state.in_force is not None and version.revision == state.in_force.revision
    return "in_force" if begun else "past"


router = Router("retention")


async def _find_of_model(request: Request, model_id: ModelId) -> None:
    request.state.policy_of = PolicyOwner("model", model_id)


async def _find_of_project(request: Request, project_id: ProjectId) -> None:
    request.state.policy_of = PolicyOwner("project", project_id)


async def _find_default(request: Request) -> None:
    request.state.policy_of = DEFAULT


async def _get_owner(request: Request) -> PolicyOwner:
    owner: PolicyOwner = request.state.policy_of
    return owner


PolicyOf = Annotated[PolicyOwner, Depends(_get_owner)]
"""The owner of the policy that the path of the request names."""


# Each level: its name, in words, its path, what finds the owner, and what a right is needed over.
_MODEL, _PROJECT = (Over.MODEL, Over.MODEL), (Over.PROJECT, Over.PROJECT)
_LEVELS: Final = (
    ("model", "a model's policy", "/models/{model_id}", _find_of_model, *_MODEL),
    ("project", "a project's policy", "/projects/{project_id}", _find_of_project, *_PROJECT),
    ("default", "the default policy", "", _find_default, Over.SOME, Over.EVERYTHING),
)


def add_policy_route(
    route: str, action: str, summary: str, *refusals: int, **options: Any
) -> Callable[[Endpoint], Endpoint]:
    """Add a function as a route of the policies of every level; it takes the owner as a `PolicyOf`.

    `route`: the method, and what comes after the policy's own path; `summary` names the level by
    `{policy}`. A GET needs the right to read, everything else the right to administer; so does a
    preview, which is requested by POST.
    """
    method, _, path = route.partition(" ")
    is_read = method == "GET"

    def add(endpoint: Endpoint) -> Endpoint:
        for level, words, place, find, read, write in _LEVELS:
            router.add(
                f"{method} {place}/retention-policy{path}",
                Needs(Right.READ, read) if is_read else Needs(Right.ADMIN, write),
                summary.format(policy=words),
                *refusals,
                name=f"{action}_{level}_policy",
                dependencies=[Depends(find)],
                **options,
            )(endpoint)
        return endpoint

    return add


# The routes: each three times, for a model, a project, and all.

_SAVED: Final[Any] = {"rules": {"__all__": {"saved"}}}

_MOST_PENDING: Final = 10
_FALLBACKS: Final = {
    "model": "the project's policy and the default one apply, if they exist",
    "project": "the default one applies, if there is one",
    "default": "everything else is kept forever",
}
_AGELESS: Final = Clock(
    instead="the ages of a rule say how old something may be: `keep_inference`, `keep_response` and"
    " `keep_input`. A time that stays the same is written TIMESTAMP('2026-11-01T00:00:00Z')"
)


@add_policy_route("GET", "get", "Read {policy}", 404)
async def get_policy(connection: Reading, access: Asking, of: PolicyOf) -> Answer[ShownPolicy]:
    """The policy in force and the pending one; 404 if there is neither."""
    await check_allowed(connection, access, of)
    state = await policies.find_state(connection, of)
    version = state.in_force or state.pending
    if version is None:
        raise NotFound(f"There is no retention policy of {of}: {_FALLBACKS[of.level]}.")
    return Answer(show_state(of, version, state, warnings=()), revision=state.revision)


@add_policy_route("GET /history", "history_of", "Versions of {policy}", 404)
async def get_history(
    page: InQuery[PageParameters], connection: Reading, access: Asking, of: PolicyOf
) -> PageAnswer[ShownPolicyVersion]:
    """Who set it, when, and what it was before: the newest first."""
    await check_allowed(connection, access, of)
    before = page.find_after(int)
    versions = await policies.list_versions(connection, of, before=before, limit=page.limit + 1)
    state = await policies.find_state(connection, of)
    return page.answer(versions, partial(show_version, state=state), attrgetter("revision"))


@add_policy_route("PUT", "set", "Set {policy}", 404, 501)
async def put_policy(
    body: PolicyBody, if_match: IfMatch, access: Asking, of: PolicyOf
) -> Answer[ShownPolicy]:
    """Set how long inputs, responses and inferences are kept, including those stored already. A
    policy that would delete any of them begins after a grace period."""
    lost, warnings = await _write(access, of, body, body.reason, if_match)
    async with access.engine.connect() as connection:
        state = await policies.find_state(connection, of)
        newest, *_ = await policies.list_versions(connection, of, limit=1)
    would_delete = _show_would_delete(lost)
    shown = show_state(of, newest, state, warnings=warnings, would_delete=would_delete)
    return Answer(shown, revision=state.revision)


@add_policy_route("POST /preview", "preview", "What {policy} would delete", 404, 501)
async def preview_policy(body: PolicyBody, access: Asking, of: PolicyOf) -> Answer[PolicyPreview]:
    """What setting the policy would do, without setting it. The token lets the policy begin at
    once."""
    lost, resolved = await _estimate(access, of, body)
    async with access.engine.connect() as connection:
        revision = (await policies.find_state(connection, of)).revision
        made_at = await policies.read_now(connection)
    return Answer(
        PolicyPreview(
            would_delete=_show_would_delete(lost),
            grace_seconds=_find_grace_seconds(access, lost),
            token=preview.make_token(of, revision, _describe_request(body), made_at),
            warnings=[] if resolved is None else list(resolved.warnings),
        )
    )


@add_policy_route("DELETE", "remove", "Remove {policy}", 404, status=204)
async def delete_policy(
    why: InQuery[Reason], if_match: IfMatch, access: Asking, of: PolicyOf
) -> Response:
    """Remove a policy: the next wider one applies, or everything is kept. If that would delete
    something, it begins after a grace period."""
    await _write(access, of, None, why.reason, if_match)
    return Response(status_code=204)


@add_policy_route(
    "DELETE /pending", "revoke", "Take back {policy} before it begins", 404, status=204
)
async def revoke_policy(if_match: IfMatch, access: Asking, of: PolicyOf) -> Response:
    """Take back the pending version. The policy in force stays."""

    async def build_body(connection: AsyncConnection) -> Body:
        await check_allowed(connection, access, of, lock=True)
        return await policies.describe_revocation(connection, of, expected=if_match)

    note = _build_note(Action.POLICY_REVOKED, of)
    await access.ledger.write("policy_revoked", build_body, actor=access.who, note=note)
    return Response(status_code=204)


async def _write(
    access: Access,
    owner: PolicyOwner,
    body: PolicyBody | None,
    reason: str | None,
    expected: int | None,
) -> tuple[Preview, Sequence[str]]:
    """Write a change to the ledger before it takes effect; return what it deletes, and warnings.

    `expected`: the revision that the policy must have now. Raises what refuses it.
    """
    lost, resolved = await _estimate(access, owner, body)
    policy = None if resolved is None else resolved.policy

    async def build_body(connection: AsyncConnection) -> Body:
        registration = await check_allowed(connection, access, owner, lock=True)
        state = await policies.find_state(connection, owner)
        before = [version.policy for version in (state.in_force, state.pending) if version]
        if _needs_override(policy, before):
            access.require_over(Right.OVERRIDE, owner.level, owner.subject, registration)
            if not reason:
                why = "say why the minimum age is undercut, shortened or removed"
                raise Invalid.of("reason", why)
        grace_seconds = _find_grace_seconds(access, lost)
        if body is not None and body.effective == "now":
            await _require_preview(connection, owner, body, state.revision)
            grace_seconds = 0.0
        return await policies.describe_change(
            connection, owner, policy, grace_seconds=grace_seconds, expected=expected, reason=reason
        )

    kind = "policy_removed" if body is None else "policy_set"
    await access.ledger.write(kind, build_body, actor=access.who, note=_note_version)
    return lost, () if resolved is None else resolved.warnings


def _find_grace_seconds(access: Access, lost: Preview) -> float:
    return 0.0 if lost.is_harmless else access.settings.policy_grace_seconds


def _note_version(version: PolicyVersion) -> Note:
    policy, began = version.policy, version.effective_at.isoformat()
    action = Action.POLICY_REMOVED if policy is None else Action.POLICY_SET
    rules = {} if policy is None else policy.model_dump(exclude_none=True, exclude=_SAVED)
    why = {} if version.reason is None else {"reason": version.reason}
    about = {"revision": version.revision, "effective_at": began, **why, **rules}
    return _build_note(action, version.of, **about)


def _build_note(action: Action, owner: PolicyOwner, **detail: Any) -> Note:
    whose = {} if owner.project_id is None else {"project_id": owner.project_id}
    return Note(action, owner.model_id, {"level": owner.level, **whose, **detail})


def _check_owner(body: PolicyBody, owner: PolicyOwner) -> None:
    """Raise Invalid if the body is of another policy than the path: a path that a browser or a
    proxy rewrote would change a wider one."""
    for name, given, expected in (
        ("level", body.level, owner.level),
        ("id", body.id, owner.subject or None),
    ):
        if given != expected:
            remedy = f"send {json.dumps(expected)}, or correct the path"
            raise Invalid.of(name, f"the path names {owner}: {remedy}")


async def _estimate(
    access: Access, owner: PolicyOwner, body: PolicyBody | None
) -> tuple[Preview, ResolvedPolicy | None]:
    trees: list[Node | None] = []
    if body is not None:
        _check_owner(body, owner)
        trees = [
            await read_filter(rule.filter, None, clock=_AGELESS, path=f"rules[{number}].filter")
            for number, rule in enumerate(body.rules)
        ]
    resolved, seconds = None, access.settings.query_timeout_seconds
    async with querying(access) as connection:
        await check_allowed(connection, access, owner)
        if body is not None:
            texts = [rule.filter if isinstance(rule.filter, str) else None for rule in body.rules]
            rules = [
                RequestedRule(rule, tree, text, rule.types)
                for rule, tree, text in zip(body.rules, trees, texts, strict=True)
            ]
            resolved = await policies.resolve_policy(connection, owner, rules, body)
        policy = None if resolved is None else resolved.policy
        lost = await preview.preview_policy(
            connection, owner, policy, lists=MemberLists(), seconds=seconds
        )
    if resolved is not None:
        warnings = (*resolved.warnings, *_warn_of_pending(lost.pending))
        resolved = replace(resolved, warnings=warnings)
    return lost, resolved


def _warn_of_pending(pending: Sequence[PolicyVersion]) -> Iterator[str]:
    for version in pending[:_MOST_PENDING]:
        what = "The removal of the policy" if version.policy is None else "The policy"
        yield (
            f"{what} of {version.of} is pending until {version.effective_at.isoformat()}:"
            " `would_delete` counts it as if it had begun, and what it keeps is kept already."
        )
    if len(pending) > _MOST_PENDING:
        yield f"{len(pending) - _MOST_PENDING} more pending policies are counted."


def _describe_request(body: PolicyBody) -> str:
    """Return the policy as it was requested: a token is bound to this."""
    return body.model_dump_json(exclude={"effective", "token", "reason"})


async def _require_preview(
    connection: AsyncConnection, owner: PolicyOwner, body: PolicyBody, revision: int
) -> None:
    if body.token is None:
        raise Invalid.of("token", "give the token of a preview, which `effective` needs")
    now = await policies.read_now(connection)
    if not preview.is_preview_of(body.token, owner, revision, _describe_request(body), now):
        raise PreconditionFailed(
            "The token is of another policy or older than an hour, or a policy was set since:"
            " preview the policy again.",
            at="token",
        )


def _needs_override(policy: RetentionPolicy | None, before: list[RetentionPolicy | None]) -> bool:
    if policy is not None and policy.undercuts_minimum_age:
        return True
    ages = [old.minimum_age for old in before if old is not None and old.minimum_age is not None]
    now = None if policy is None else policy.minimum_age
    return any(now is None or not is_never_longer(age, now) for age in ages)


def _show_would_delete(result: Preview) -> WouldDelete:
    return WouldDelete(
        **{
            f"{part}s": LossCount.show(loss, count=loss.inferences)
            for part, loss in result.parts.items()
        },
        more_than_now=result.fresh,
        exports=result.exports,
        partial=result.cut,
        examples=[
            LossExample.show(row, model_id=model_id, decided_by=show_rule(rule))
            for model_id, rule, row in result.examples
        ],
    )


def show_rule(rule: EffectiveRule | None) -> DecidedBy | None:
    """Make the answer about which rule it is."""
    if rule is None:
        return None
    return DecidedBy.show(rule.of, rule=rule.number, name=rule.rule.name)
