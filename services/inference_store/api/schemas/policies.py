"""Retention policies."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from inference_store.store.cql2.tree import Node
from inference_store.store.retention.policies import MOST_RULES, Ages, AskedRule, Bounds
from inference_store.store.retention.policies.rules import check_rules, check_says_something

from .fields import ShortText, Shown


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

    rules: Annotated[tuple[RuleBody, ...], Field(max_length=MOST_RULES)] = ()
    reason: ShortText | None = None
    """Why, for the history; needed where a minimum age is undercut, shortened or taken away."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        check_rules([(rule.name, rule.filter is not None) for rule in self.rules])
        check_says_something(len(self.rules), self)
        return self

    def asked(self, trees: list[Node | None]) -> Iterator[AskedRule]:
        """The rules, with the trees of their filters."""
        for rule, tree in zip(self.rules, trees, strict=True):
            source = rule.filter if isinstance(rule.filter, str) else None
            yield AskedRule(rule, tree, source, rule.types)


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
    max_bytes: int | None
    minimum_age: str | None
    undercuts_minimum_age: bool
    set_by: str
    updated_at: datetime
    effective_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    reason: str | None


class ShownPolicy(ShownVersion):
    """The policy that is in force, or, where none is, the one that waits to begin."""

    level: str
    """`model`, `project` or `default`: whose policy it is."""
    model_id: str | None
    project_id: str | None
    pending: ShownVersion | None
    """What begins later, until it is revoked."""
    warnings: list[str]


class PolicyHistory(Shown):
    """Every version, the newest first."""

    items: list[ShownVersion]
    next: str | None
