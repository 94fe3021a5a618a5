"""Retention policies: how long a model's inputs and inferences are kept.

Ages count from `received_at`, and apply to what is stored already as to what still comes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import registrations
from inference_store.store.errors import PreconditionFailed
from inference_store.store.tables import retention_policy

from .durations import parse_duration

Scope = Literal["input", "inference"]

# Every day of a leap cycle: what is shorter on all of them is shorter.
_REFERENCES = tuple(datetime(2096, 2, 1, tzinfo=UTC) + timedelta(days=n) for n in range(0, 1461))


def _checked(text: str) -> str:
    parse_duration(text)
    return text


Keep = Annotated[
    str,
    AfterValidator(_checked),
    Field(
        max_length=64,
        description="An ISO 8601 duration (days and below exact, months and years by the"
        " calendar, UTC) or `forever`.",
        examples=["P30D", "P1Y", "PT12H", "forever"],
    ),
]


class Rule(BaseModel):
    """How long to keep the datum with the rest of the request, and the whole inference."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = Field(default=None, max_length=256)
    keep_input: Keep
    keep_inference: Keep

    @model_validator(mode="after")
    def _input_goes_first(self) -> Self:
        if not _never_longer(self.keep_input, self.keep_inference):
            raise ValueError(
                f"keep_input ({self.keep_input}) must not be longer than keep_inference"
                f" ({self.keep_inference}), on any day of the calendar"
            )
        return self


class RetentionPolicy(BaseModel):
    """A model's rules; one in this release, since rules have no filters yet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: tuple[Rule, ...]

    @field_validator("rules")
    @classmethod
    def _exactly_one(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        if len(rules) != 1:
            raise ValueError(
                f"a policy has exactly one rule, not {len(rules)}: rules have no filters yet,"
                " so a second one could never apply"
            )
        return rules


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy as it is kept, with the revision that `If-Match` names."""

    model: int
    policy: RetentionPolicy
    revision: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """What was received before these instants has expired; None: it is kept for ever."""

    input: datetime | None
    inference: datetime | None

    def expired(self, received_at: datetime) -> Scope | None:
        """What of an inference has expired: all of it, its input, or nothing."""
        if self.inference is not None and received_at < self.inference:
            return "inference"
        if self.input is not None and received_at < self.input:
            return "input"
        return None


def cutoffs(policy: RetentionPolicy, now: datetime) -> Cutoffs:
    """The cutoffs at an instant."""
    (rule,) = policy.rules
    return Cutoffs(_before(rule.keep_input, now), _before(rule.keep_inference, now))


def _before(keep: str, now: datetime) -> datetime | None:
    duration = parse_duration(keep)
    return None if duration is None else duration.before(now)


def _never_longer(shorter: str, longer: str) -> bool:
    first, second = parse_duration(shorter), parse_duration(longer)
    if first is None or second is None:
        return second is None
    return all(first.before(at) >= second.before(at) for at in _REFERENCES)


async def get(connection: AsyncConnection, model: int) -> StoredPolicy | None:
    """A model's policy; None where it has none, and everything is kept for ever."""
    query = select(retention_policy).where(retention_policy.c.model == model)
    row = (await connection.execute(query)).first()
    return None if row is None else _stored(row)


async def by_model(
    connection: AsyncConnection, models: Iterable[int] | None = None
) -> dict[int, RetentionPolicy]:
    """The policies of these models, or of all."""
    query = select(retention_policy)
    if models is not None:
        query = query.where(retention_policy.c.model.in_(list(models)))
    return {row.model: _stored(row).policy for row in await connection.execute(query)}


async def put(
    connection: AsyncConnection, model: int, policy: RetentionPolicy, *, revision: int | None = None
) -> StoredPolicy:
    """Set a model's policy. `revision`: the one it must have now (0: none).

    Raises PreconditionFailed when it has another.
    """
    values = {"rules": [rule.model_dump(exclude_none=True) for rule in policy.rules]}
    if revision == 0:
        made = insert(retention_policy).values(model=model, **values).on_conflict_do_nothing()
        row = (await connection.execute(made.returning(retention_policy))).first()
    elif revision is not None:
        changed = retention_policy.update().where(*_of(model, revision))
        changed = changed.values(**values, **_next())
        row = (await connection.execute(changed.returning(retention_policy))).first()
    else:
        either = insert(retention_policy).values(model=model, **values)
        either = either.on_conflict_do_update(index_elements=["model"], set_=values | _next())
        row = (await connection.execute(either.returning(retention_policy))).first()
    if row is None:
        raise _changed(revision)
    return _stored(row)


async def next_revision(
    connection: AsyncConnection, model: int, revision: int | None = None
) -> int:
    """The revision that the next policy of a model gets. `revision`: the one it must have now.

    Raises PreconditionFailed when it has another.
    """
    present = select(retention_policy.c.revision).where(retention_policy.c.model == model)
    found = await connection.scalar(present.with_for_update()) or 0
    if revision not in (None, found):
        raise _changed(revision)
    return int(found) + 1


async def apply_set(
    connection: AsyncConnection, body: dict[str, Any], at: datetime, _: str
) -> StoredPolicy:
    """The effect of an entry `policy_set`: `{model_id, rules, revision}`."""
    model = await registrations.ensure(connection, body["model_id"])
    values = {"rules": body["rules"], "revision": body["revision"], "updated_at": at}
    either = insert(retention_policy).values(model=model, **values)
    either = either.on_conflict_do_update(index_elements=["model"], set_=values)
    return _stored((await connection.execute(either.returning(retention_policy))).one())


async def apply_removed(
    connection: AsyncConnection, body: dict[str, Any], _at: datetime, _: str
) -> None:
    """The effect of an entry `policy_removed`: `{model_id}`."""
    model = await registrations.ensure(connection, body["model_id"])
    await connection.execute(retention_policy.delete().where(retention_policy.c.model == model))


async def delete(connection: AsyncConnection, model: int, *, revision: int | None = None) -> bool:
    """Remove a model's policy: all is kept for ever. False: there was none.

    Raises PreconditionFailed when it has another revision than `revision`.
    """
    where = _of(model, revision)
    removed = await connection.execute(retention_policy.delete().where(*where))
    if removed.rowcount == 0 and revision is not None:
        raise _changed(revision)
    return removed.rowcount > 0


def _of(model: int, revision: int | None) -> list[ColumnElement[bool]]:
    here = [retention_policy.c.model == model]
    return here if revision is None else [*here, retention_policy.c.revision == revision]


def _next() -> dict[str, Any]:
    return {"revision": retention_policy.c.revision + 1, "updated_at": func.now()}


def _changed(revision: int | None) -> PreconditionFailed:
    return PreconditionFailed(f"the retention policy no longer has revision {revision}")


def _stored(row: Any) -> StoredPolicy:
    policy = RetentionPolicy.model_validate({"rules": row.rules})
    return StoredPolicy(row.model, policy, row.revision, row.updated_at)
