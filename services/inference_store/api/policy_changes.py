"""Routes of retention policies: each three times, for a model, a project, and all."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking, Needs, Over
from inference_store.api.answer import Answer, Shown
from inference_store.api.conditions import read_filter
from inference_store.api.dependencies import IfMatch, Reading, Writing, querying
from inference_store.api.fields import InQuery, PageAnswer, PageParameters
from inference_store.api.http import INFERENCE, InferenceId, ModelId
from inference_store.api.policies import (
    DecidedBy,
    LossCount,
    LossExample,
    PolicyBody,
    PolicyOf,
    PolicyPreview,
    Reason,
    ShownPolicy,
    ShownPolicyVersion,
    WouldDelete,
    add_policy_route,
    check_allowed,
    describe_owner,
    show_state,
    show_version,
)
from inference_store.api.routing import Router
from inference_store.erasure import policies, preview, runs
from inference_store.erasure.ledger_entries import Body, Note
from inference_store.erasure.policies import (
    EffectiveRule,
    PolicyOwner,
    PolicyVersion,
    RequestedRule,
    ResolvedPolicy,
    RetentionPolicy,
    list_models,
    warn_of_empty_project,
)
from inference_store.erasure.policies.effective_policy import is_never_longer
from inference_store.erasure.preview import Preview
from inference_store.erasure.runs import RetentionRun
from inference_store.export.erased import MemberLists
from inference_store.index import registrations
from inference_store.inference.errors import Fault, Invalid, NotFound, PreconditionFailed
from inference_store.query.cql2 import Clock
from inference_store.query.cql2.tree import Node

_SAVED: Final[Any] = {"rules": {"__all__": {"saved"}}}


router = Router("retention")
_MOST_PENDING: Final = 10
_FALLBACKS: Final = {
    "model": "its project's and the default one apply, where there are any",
    "project": "the default one applies, where there is any",
    "default": "what no other policy says is kept for ever",
}
_AGELESS: Final = Clock(
    instead="the ages of a rule say how old something may be: `keep_inference`, `keep_response` and"
    " `keep_input`. A time that stays the same is written TIMESTAMP('2026-11-01T00:00:00Z')"
)


@add_policy_route(router, "GET", "get", "Read {policy}", 404)
async def get_policy(connection: Reading, access: Asking, of: PolicyOf) -> Answer[ShownPolicy]:
    """The policy in force, and what waits to begin; 404 where there is neither."""
    await check_allowed(connection, access, of)
    state = await policies.find_state(connection, of)
    version = state.in_force or state.pending
    if version is None:
        raise NotFound(f"There is no retention policy of {of}: {_FALLBACKS[of.level]}.")
    return Answer(show_state(of, version, state, warnings=()), revision=state.revision)


@add_policy_route(router, "GET /history", "history_of", "Versions of {policy}", 404)
async def get_history(
    page: InQuery[PageParameters], connection: Reading, access: Asking, of: PolicyOf
) -> PageAnswer[ShownPolicyVersion]:
    """Who set it, when, and what it was before: the newest first."""
    await check_allowed(connection, access, of)
    before = page.find_after(int)
    versions = await policies.list_versions(connection, of, before=before, limit=page.limit + 1)
    state = await policies.find_state(connection, of)
    return page.answer(versions, partial(show_version, state=state), attrgetter("revision"))


@add_policy_route(router, "PUT", "set", "Set {policy}", 404, 501)
async def put_policy(
    body: PolicyBody, if_match: IfMatch, access: Asking, of: PolicyOf
) -> Answer[ShownPolicy]:
    """Set how long inputs, responses and inferences are kept; it applies to those stored
    already, too. One that would delete any of them begins after a grace."""
    lost, warnings = await _write(access, of, body, body.reason, if_match)
    async with access.engine.connect() as connection:
        state = await policies.find_state(connection, of)
        newest, *_ = await policies.list_versions(connection, of, limit=1)
    would_delete = _show_would_delete(lost)
    shown = show_state(of, newest, state, warnings=warnings, would_delete=would_delete)
    return Answer(shown, revision=state.revision)


@add_policy_route(router, "POST /preview", "preview", "What {policy} would delete", 404, 501)
async def preview_policy(body: PolicyBody, access: Asking, of: PolicyOf) -> Answer[PolicyPreview]:
    """The same as setting it, without setting it; its token lets it begin at once."""
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


@add_policy_route(router, "DELETE", "remove", "Remove {policy}", 404, status=204)
async def delete_policy(
    why: InQuery[Reason], if_match: IfMatch, access: Asking, of: PolicyOf
) -> Response:
    """The next wider policy applies, or everything is kept; after a grace where that would
    delete something."""
    await _write(access, of, None, why.reason, if_match)
    return Response(status_code=204)


@add_policy_route(
    router, "DELETE /pending", "revoke", "Take back {policy} before it begins", 404, status=204
)
async def revoke_policy(if_match: IfMatch, access: Asking, of: PolicyOf) -> Response:
    """What waits to begin never does; what is in force stays so."""

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
                why = "say why the minimum age is undercut, shortened or taken away"
                fault = Fault("reason", why)
                raise Invalid("Going against a minimum age needs a reason.", faults=[fault])
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
    whose = {"project_id": owner.subject} if owner.level == "project" else {}
    model_id = owner.subject if owner.level == "model" else None
    return Note(action, model_id, {"level": owner.level, **whose, **detail})


def _check_owner(body: PolicyBody, owner: PolicyOwner) -> None:
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
        fault = Fault("token", "give the `token` that the preview of this policy answered")
        raise Invalid("A policy begins at once only where it was previewed.", faults=[fault])
    now = await policies.read_now(connection)
    if not preview.is_preview_of(body.token, owner, revision, _describe_request(body), now):
        raise PreconditionFailed(
            "the token is of another policy or older than an hour, or a policy was set since:"
            " preview it again"
        )


def _needs_override(policy: RetentionPolicy | None, before: list[RetentionPolicy | None]) -> bool:
    if policy is not None and policy.undercuts_minimum_age:
        return True
    minimum_ages = [
        policy_before.minimum_age for policy_before in before if policy_before is not None
    ]
    now = None if policy is None else policy.minimum_age
    return any(
        age is not None and (now is None or not is_never_longer(age, now)) for age in minimum_ages
    )


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
            LossExample.show(row, model_id=model_id, decided_by=_show_rule(rule))
            for model_id, rule, row in result.examples
        ],
    )


def _show_rule(rule: EffectiveRule | None) -> DecidedBy | None:
    """Make the answer about which rule it is."""
    if rule is None:
        return None
    whose = describe_owner(rule.of)
    return DecidedBy(level=rule.of.level, rule=rule.number, name=rule.rule.name, **whose)


# Why an inference is kept, and runs of retention.


class ShownLimit(Shown):
    """A limit that applies to the model."""

    name: str
    """`max_inferences`."""
    most: int
    level: str
    """Whose policy says it: `model`, `project` or `default`."""


class PendingRule(Shown):
    """The rule that decides once everything pending has begun."""

    begins_at: datetime
    decided_by: DecidedBy | None
    """Null: no rule is of it then, and it is kept."""


class HeldBy(Shown):
    """A legal hold."""

    id: UUID
    name: str


class RetentionExplanation(Shown):
    """The rule that decides about an inference. A time is null where the part is kept for ever."""

    uid: UUID
    received_at: datetime
    decided_by: DecidedBy | None
    """Null: no rule is of it, and it is kept."""
    pending: PendingRule | None
    """Null: nothing that applies to the model is pending."""
    input_goes_at: datetime | None
    """From here on the next run takes it, unless a hold keeps it."""
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    limits: list[ShownLimit]
    """They may take it earlier."""
    held_by: HeldBy | None
    """The oldest hold that keeps it, whatever else is said here."""


class ShownRetentionRun(RetentionRun, Shown):
    """One run of retention."""

    model_id: str | None
    """Null: of every model, or of those of the project."""
    cause: str  # type: ignore[assignment]  # a later version may have more
    """`schedule` or `request`."""
    state: str  # type: ignore[assignment]
    """pending, running, done or failed."""


class RequestedRetentionRun(ShownRetentionRun):
    """A run that was just asked for."""

    warnings: list[str]


_NEEDED = Needs(Right.READ, Over.SOME)


@router.add(f"GET {INFERENCE}/retention", Right.READ, "Why an inference is kept")
async def get_retention(
    model_id: ModelId, inference_id: InferenceId, connection: Reading, access: Asking
) -> Answer[RetentionExplanation]:
    """Which rule of which policy decides about the newest inference of that id, and which one once
    what is pending has begun; when its parts go by both, which limits apply beside, and the oldest
    hold that keeps it."""
    registration, uids = await access.find_inferences(connection, model_id, inference_id)
    explained = await preview.explain_retention(connection, registration.model, uids[0])
    later, limit = _show_rule(explained.decided_later), explained.limit
    pending = explained.begins_at and PendingRule(begins_at=explained.begins_at, decided_by=later)
    return Answer(
        RetentionExplanation.show(
            explained,
            uid=uids[0],
            decided_by=_show_rule(explained.decided_by),
            pending=pending,
            limits=[] if limit is None else [ShownLimit.show(limit, level=limit.of.level)],
            **{f"{part}_goes_at": at for part, at in explained.goes_at.items()},
        )
    )


@router.add("GET /retention/runs", _NEEDED, "List runs")
async def list_runs(
    page: InQuery[PageParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownRetentionRun]:
    """Runs of retention, the newest first; those of every model only where everything is read."""
    listed_runs = await runs.list_runs(
        connection, before=page.find_before(), limit=page.limit + 1, within=access.scope
    )
    names = await registrations.names(connection, {run.model for run in listed_runs})
    return page.answer(listed_runs, partial(_show_run, names))


@router.add("GET /retention/runs/{run_id}", _NEEDED, "Read a run")
async def get_run(run_id: UUID, connection: Reading, access: Asking) -> Answer[ShownRetentionRun]:
    """One run of retention."""
    run = await runs.get_run(connection, run_id, within=access.scope)
    return Answer(_show_run(await registrations.names(connection, {run.model}), run))


def _show_run(names: Mapping[int, str], run: RetentionRun) -> ShownRetentionRun:
    return ShownRetentionRun.show(run, model_id=run.model and names.get(run.model))


@add_policy_route(router, "POST /run", "run", "Run retention now, by {policy}", 404, status=202)
async def run_policy(
    connection: Writing, access: Asking, of: PolicyOf
) -> Answer[RequestedRetentionRun]:
    """Ask the retention service to apply now what is in force for the model, for each model of
    the project, or for all."""
    registration = await check_allowed(connection, access, of)
    project_id = of.subject if of.level == "project" else None
    model = None if registration is None else registration.model
    run = await runs.request_run(connection, model, project_id=project_id)
    whose: dict[str, Any] = {} if project_id is None else {"project_id": project_id}
    await access.note(
        connection, Action.RETENTION_REQUESTED, registration, run=str(run.id), **whose
    )
    warnings = warn_of_empty_project(of, await list_models(connection, of))
    model_id = None if registration is None else registration.model_id
    body = RequestedRetentionRun.show(run, model_id=model_id, warnings=warnings)
    return Answer(body, status_code=202, location=f"/v1/retention/runs/{run.id}")
