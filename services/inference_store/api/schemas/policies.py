"""Retention policies."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from inference_store.api.shown import Shown
from inference_store.erasure.policies import MOST_RULES, Ages, Bounds, LevelName, RequestedRule
from inference_store.erasure.policies.rules import check_not_empty, check_rules
from inference_store.erasure.preview.preview import LossCount, LossExample
from inference_store.query.cql2.tree import Node

from .fields import ShortText
from .links import Parameters


def _filter_schema(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": kind} for kind in ("string", "object", "boolean", "null")]


class RuleBody(Ages):
    """One rule: what it is of, and how long each part is kept."""

    filter: Any = Field(
        default=None,
        description="A filter in CQL2: a string is CQL2-Text, an object CQL2-JSON. The first rule"
        " whose filter is TRUE decides; left out: the rule is of everything.",
        examples=["top_score < 0.4"],
        json_schema_extra=_filter_schema,
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

    def list_requested_rules(self, trees: list[Node | None]) -> Iterator[RequestedRule]:
        """Yield the rules with the trees of their filters."""
        for rule, tree in zip(self.rules, trees, strict=True):
            source = rule.filter if isinstance(rule.filter, str) else None
            yield RequestedRule(rule, tree, source, rule.types)


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


class ShownVersion(Shown):
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


class Losing(Shown, of=LossCount):
    """How many inferences lose something. What is being erased already is not counted."""


class DecidedBy(Shown):
    """A rule, and whose policy it stands in."""

    level: str
    model_id: str | None
    project_id: str | None
    rule: int | None
    """Its place in the policy, from 0."""
    name: str | None


class ExampleLost(Shown, of=LossExample, instead={"of": ("decided_by",), "rule": (), "name": ()}):
    """One of the oldest that would lose something."""

    scope: str
    """`inference` (everything), `response` or `input`."""
    decided_by: DecidedBy | None
    """Null: a limit."""


class WouldDelete(Shown):
    """What a policy would delete today, together with the policies around it."""

    inferences: Losing
    """What goes whole."""
    responses: Losing
    inputs: Losing
    more_than_now: int
    """Inferences that lose something which what is in force now does not take."""
    exports: int
    """Exports that name something that would go: an erasure deletes their parts that have it."""
    partial: bool
    """The time was over before all was looked at: it is more."""
    examples: list[ExampleLost]


class PolicyPreview(Shown):
    """What a policy would do, without setting it."""

    would_delete: WouldDelete
    grace_seconds: float
    """So long after it is set it would begin."""
    token: UUID
    """Lets this policy begin at once, for an hour, while nothing else is set."""
    warnings: list[str]


class ShownPolicy(ShownVersion):
    """The policy that is in force, or, where none is, the one that waits to begin."""

    level: str
    """`model`, `project` or `default`: whose policy it is."""
    model_id: str | None
    project_id: str | None
    pending: ShownVersion | None
    """What begins later, until it is revoked."""
    warnings: list[str]
    would_delete: WouldDelete | None = None
    """What it would delete today; only where it was just set."""


class PolicyHistory(Shown):
    """Every version, the newest first."""

    items: list[ShownVersion]
    next: str | None
