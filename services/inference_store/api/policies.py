"""Retention policies of a model, of a project, and of all: their bodies, answers and paths."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, Self
from uuid import UUID

from fastapi import Depends, Request
from pydantic import Field, model_validator
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.erasure import policies
from inference_store.erasure.policies import (
    DEFAULT,
    MOST_RULES,
    Ages,
    Bounds,
    LevelName,
    PolicyOwner,
    PolicyState,
    PolicyVersion,
)
from inference_store.erasure.policies.effective_policy import check_not_empty, check_rules
from inference_store.index.registrations import Registration
from inference_store.inference.field_docs import ShortText

from .access import Access, Needs, Over
from .answer import Shown
from .conditions import filter_field
from .fields import Parameters
from .http import ModelId, ProjectId
from .routing import Endpoint, Router


class RuleBody(Ages):
    """One rule: what it is of, and how long each part is kept."""

    filter: Any = filter_field(
        "The first rule whose filter is TRUE decides; left out: the rule is of everything.",
        "top_score < 0.4",
    )
    types: Annotated[dict[ShortText, ShortText], Field(max_length=32)] = Field(
        default={},
        description="The types of metadata keys that the filter names and nothing has yet.",
        examples=[{"reviewed": "bool"}],
    )


class PolicyBody(Bounds):
    """A policy: the first rule that is TRUE decides; where none is, the next wider policy."""

    level: LevelName
    """Whose policy it is, as in the path: what was sent to another path by mistake is refused."""
    id: ShortText | None
    """The id of the model or project, as in the path, not escaped; null: the default has none."""
    rules: Annotated[tuple[RuleBody, ...], Field(max_length=MOST_RULES)] = ()
    reason: ShortText | None = None
    """Why, for the history; needed where a minimum age is undercut, shortened or taken away."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_rules([(rule.name, rule.filter is not None) for rule in self.rules])
        check_not_empty(len(self.rules), self)
        return self

    effective: Literal["now"] | None = None
    """`now`: without the grace; needs the preview's `token`."""
    token: UUID | None = None
    """Of the preview of this very policy, an hour old at most."""


class Reason(Parameters):
    """Why."""

    reason: ShortText | None = None
    """Needed where a minimum age is taken away."""


class ShownRule(Shown):
    """What a rule is of, and how long the parts are kept."""

    name: str | None = None
    filter: str | None = None
    """CQL2-Text; null: everything."""
    keep_input: str
    keep_response: str
    keep_inference: str


class ShownPolicyVersion(Shown):
    """One version of a policy."""

    revision: int
    state: str
    """`in_force`, `pending` (it begins at `effective_at`), `revoked` before it began, or `past`."""
    removed: bool
    """From this version on there is no policy."""
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
    """Of their inputs, as far as sizes are known; of responses none is."""
    unknown_sizes: int
    held: int
    """More of them, which legal holds keep."""
    oldest: datetime | None
    newest: datetime | None


class DecidedBy(Shown):
    """A rule, and whose policy it stands in."""

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
    """Null: a limit."""


class WouldDelete(Shown):
    """What a policy would delete today, together with the policies around it."""

    inferences: LossCount
    """What goes whole."""
    responses: LossCount
    inputs: LossCount
    more_than_now: int
    """Inferences that lose something which what is in force now does not take."""
    exports: int
    """Exports that name something that would go: an erasure deletes their parts that have it."""
    partial: bool
    """The time was over before all was looked at: it is more."""
    examples: list[LossExample]


class PolicyPreview(Shown):
    """What a policy would do, without setting it."""

    would_delete: WouldDelete
    grace_seconds: float
    """So long after it is set it would begin."""
    token: UUID
    """Lets this policy begin at once, for an hour, while nothing else is set."""
    warnings: list[str]


class ShownPolicy(ShownPolicyVersion):
    """The policy that is in force, or, where none is, the one that waits to begin."""

    level: str
    """`model`, `project` or `default`: whose policy it is."""
    model_id: str | None
    project_id: str | None
    pending: ShownPolicyVersion | None
    """What begins later, until it is revoked."""
    warnings: list[str]
    would_delete: WouldDelete | None = None
    """What it would delete today; only where it was just set."""


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
    description = _describe_version(version, state)
    return ShownPolicy.show(
        version, level=owner.level, pending=pending, **description, **describe_owner(owner), **more
    )


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


def describe_owner(owner: PolicyOwner) -> dict[str, str | None]:
    """Return the ids of the model or project whose policy it is."""
    return {
        "model_id": owner.subject if owner.level == "model" else None,
        "project_id": owner.subject if owner.level == "project" else None,
    }


def _describe_state(version: PolicyVersion, state: PolicyState) -> str:
    if version.revoked_at is not None:
        return "revoked"
    if version.effective_at > datetime.now(UTC) and version == state.pending:
        return "pending"
    begun = state.in_force is not None and version.revision == state.in_force.revision
    return "in_force" if begun else "past"


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


class PolicyLevel(NamedTuple):
    """A level of policies: what finds the owner, and the extent that a right is needed for."""

    name: LevelName
    words: str
    path: str
    find: Callable[..., Awaitable[None]]
    read: Over
    write: Over


_OF_MODEL = ("/models/{model_id}", _find_of_model, Over.MODEL, Over.MODEL)
_OF_PROJECT = ("/projects/{project_id}", _find_of_project, Over.PROJECT, Over.PROJECT)
POLICY_LEVELS: Final = (
    PolicyLevel("model", "a model's policy", *_OF_MODEL),
    PolicyLevel("project", "a project's policy", *_OF_PROJECT),
    PolicyLevel("default", "the default policy", "", _find_default, Over.SOME, Over.EVERYTHING),
)


def add_policy_route(
    router: Router, route: str, action: str, summary: str, *refusals: int, **options: Any
) -> Callable[[Endpoint], Endpoint]:
    """Add a function as a route of the policies of every level; it takes the owner as a `PolicyOf`.

    `route`: the method, and what comes after the policy's own path; `summary` names the level by
    `{policy}`. A GET needs the right to read, everything else the right to administer; so does a
    preview, which is requested by POST.
    """
    method, _, path = route.partition(" ")

    def add(endpoint: Endpoint) -> Endpoint:
        for level in POLICY_LEVELS:
            is_read = method == "GET"
            router.add(
                f"{method} {level.path}/retention-policy{path}",
                Needs(Right.READ, level.read) if is_read else Needs(Right.ADMIN, level.write),
                summary.format(policy=level.words),
                *refusals,
                name=f"{action}_{level.name}_policy",
                dependencies=[Depends(level.find)],
                **options,
            )(endpoint)
        return endpoint

    return add
