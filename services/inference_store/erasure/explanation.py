"""Explains why an inference is still there, and when its parts are deleted."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies, selection
from inference_store.erasure.holds import Hold
from inference_store.erasure.policies import EffectivePolicy, EffectiveRule, RetentionLimit
from inference_store.erasure.policies.effective_policy import parse_duration
from inference_store.index.tables import inference, registration
from inference_store.inference.errors import NotFound
from inference_store.query.deadline import ScanRange as Where


@dataclass(frozen=True, slots=True)
class PendingDecision:
    """What will decide once everything pending has begun. What it keeps is kept already."""

    begins_at: datetime
    decided_by: EffectiveRule | None
    """Null: no rule is of it then, and it is kept."""


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """The rule that decides about an inference, and the times from which a part may be deleted,
    by what is in force and by what is pending.

    None: the part is kept for ever, as far as rules go.
    """

    received_at: datetime
    decided_by: EffectiveRule | None
    """Null: no rule is of it, and it is kept."""
    pending: PendingDecision | None
    """Null: nothing that applies to the model is pending."""
    input_goes_at: datetime | None
    """From here on the next run takes it, unless a hold keeps it."""
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    limits: tuple[RetentionLimit, ...]
    """They may take it earlier."""
    held_by: Hold | None
    """The oldest hold that keeps it, whatever else is said here."""


async def explain_retention(
    connection: AsyncConnection, model: int, uid: UUID
) -> RetentionExplanation:
    """Explain one inference by the policies in force, those that are pending, and the holds.

    Raises NotFound.
    """
    now = await policies.read_now(connection)
    current, coming, begins_at = await _find_policies(connection, model)
    rules, rules_coming = [
        await selection.compile_rules(connection, policy, now) for policy in (current, coming)
    ]
    where = Where(model, uid, UUID(int=uid.int + 1))
    query = select(
        rules.build_number(where).label("rule"),
        rules_coming.build_number(where).label("coming"),
        inference.c.received_at,
    ).where(where.of(inference))
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound("The inference has just been deleted.")
    held = await holds.find_holds(
        connection, await holds.list_in_force(connection, [model]), model, [uid]
    )
    deciding, next_deciding = _find_rule(current, row.rule), _find_rule(coming, row.coming)
    times = _list_deletion_times(deciding, row.received_at)
    pending = None
    if begins_at is not None:
        pending = PendingDecision(begins_at, next_deciding)
        later = _list_deletion_times(next_deciding, row.received_at)
        times = [_join(*pair, begins_at) for pair in zip(times, later, strict=True)]
    return RetentionExplanation(
        received_at=row.received_at,
        decided_by=deciding,
        pending=pending,
        input_goes_at=times[0],
        response_goes_at=times[1],
        inference_goes_at=times[2],
        limits=() if current.limit is None else (current.limit,),
        held_by=held.get(uid),
    )


async def _find_policies(
    connection: AsyncConnection, model: int
) -> tuple[EffectivePolicy, EffectivePolicy, datetime | None]:
    here = registration.c
    deciding = policies.build_deciding_project().label("deciding")
    query = select(here.model_id, here.project_id, here.moves_at, deciding)
    row = (await connection.execute(query.where(here.model == model))).one()
    owners = policies.list_owners(row.model_id, row.deciding)
    owners_coming = policies.list_owners(row.model_id, row.project_id)
    in_force = await policies.find_in_force(connection, {*owners, *owners_coming})
    pending = await policies.find_pending(connection, owners_coming)
    begins = [version.effective_at for version in pending.values()]
    if row.deciding != row.project_id:
        begins.append(row.moves_at)
    coming = policies.apply_pending(in_force, pending)
    current = policies.build_effective_policy(owners, in_force) or EffectivePolicy()
    following = policies.build_effective_policy(owners_coming, coming) or EffectivePolicy()
    return current, following, max(begins, default=None)


def _find_rule(policy: EffectivePolicy, number: int) -> EffectiveRule | None:
    return None if number == selection.UNDECIDED else policy.rules[number]


def _list_deletion_times(
    rule: EffectiveRule | None, received_at: datetime
) -> list[datetime | None]:
    if rule is None:
        return [None, None, None]
    ages = (rule.rule.input, rule.rule.response, rule.rule.keep_inference)
    return [_find_deletion_time(rule, age, received_at) for age in ages]


def _join(
    current: datetime | None, coming: datetime | None, begins_at: datetime
) -> datetime | None:
    """Return when a part is deleted: what is coming says so, and has begun or what is in force says
    so too."""
    if coming is None:
        return None
    return max(coming, begins_at if current is None else min(current, begins_at))


def _find_deletion_time(
    deciding_rule: EffectiveRule, keep: str, received_at: datetime
) -> datetime | None:
    duration = parse_duration(keep)
    if duration is None:
        return None
    instants = [of.after(received_at) for of in (duration, *deciding_rule.minimum)]
    finite = [instant for instant in instants if instant is not None]
    return max(finite) if len(finite) == len(instants) else None
