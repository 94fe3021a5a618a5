"""Explains why an inference is still there, and when its parts are deleted."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies, selection
from inference_store.erasure.holds import Hold
from inference_store.erasure.policies import (
    EffectivePolicy,
    EffectiveRule,
    ErasureScope,
    RetentionLimit,
)
from inference_store.erasure.policies.effective_policy import parse_duration
from inference_store.index.tables import inference, registration
from inference_store.inference.errors import NotFound
from inference_store.query.deadline import ScanRange


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which rule decides about an inference (None: no rule is of it), and which one once everything
    pending has begun.

    `begins_at`: None if nothing is pending. `goes_at`: for each part, when it goes by both; None:
    it is kept for ever, as far as rules go.
    """

    received_at: datetime
    decided_by: EffectiveRule | None
    begins_at: datetime | None
    decided_later: EffectiveRule | None
    goes_at: Mapping[ErasureScope, datetime | None]
    limit: RetentionLimit | None
    held_by: Hold | None


async def explain_retention(connection: AsyncConnection, model: int, uid: UUID) -> Explanation:
    """Explain one inference by the policies in force, those that are pending, and the holds.

    Raises NotFound.
    """
    now = await policies.read_now(connection)
    current, coming, begins_at = await _find_policies(connection, model)
    where = ScanRange(model, uid, UUID(int=uid.int + 1))
    numbers = [
        (await selection.compile_rules(connection, policy, now)).build_number(where)
        for policy in (current, coming)
    ]
    query = select(inference.c.received_at, *numbers).where(where.of(inference))
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound("The inference has just been deleted.")
    in_force = await holds.list_in_force(connection, [model])
    held = await holds.find_holds(connection, in_force, model, [uid])
    received_at, *decided = row
    rules = [
        None if number == selection.UNDECIDED else policy.rules[number]
        for policy, number in zip((current, coming), decided, strict=True)
    ]
    now_goes_at, goes_at = [_find_deletion_times(rule, received_at) for rule in rules]
    if begins_at is not None:
        now_goes_at = {
            part: _join(now_goes_at[part], later, begins_at) for part, later in goes_at.items()
        }
    return Explanation(
        received_at=received_at,
        decided_by=rules[0],
        begins_at=begins_at,
        decided_later=rules[1],
        goes_at=now_goes_at,
        limit=current.limit,
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


def _find_deletion_times(
    rule: EffectiveRule | None, received_at: datetime
) -> dict[ErasureScope, datetime | None]:
    times: dict[ErasureScope, datetime | None] = dict.fromkeys(("input", "response", "inference"))
    if rule is None:
        return times
    ages = (rule.rule.input, rule.rule.response, rule.rule.keep_inference)
    for part, age in zip(times, ages, strict=True):
        durations = [parse_duration(age), *rule.minimum]
        instants = [None if of is None else of.after(received_at) for of in durations]
        finite = [instant for instant in instants if instant is not None]
        times[part] = max(finite) if len(finite) == len(instants) else None
    return times


def _join(
    current: datetime | None, coming: datetime | None, begins_at: datetime
) -> datetime | None:
    """Return when a part is deleted: what is coming says so, and has begun or what is in force says
    so too."""
    if coming is None:
        return None
    return max(coming, begins_at if current is None else min(current, begins_at))
