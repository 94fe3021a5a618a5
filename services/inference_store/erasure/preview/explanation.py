"""Explains why an inference is still there, and when its parts are deleted."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies
from inference_store.erasure.holds import Hold
from inference_store.erasure.policies import EffectivePolicy, EffectiveRule, RetentionLimit
from inference_store.erasure.policies.durations import Duration, parse_duration
from inference_store.erasure.select import selection
from inference_store.index.tables import inference
from inference_store.inference.errors import NotFound
from inference_store.query.scan_range import ScanRange as Where


@dataclass(frozen=True, slots=True)
class RetentionExplanation:
    """The rule that decides about an inference, and the times from which a part may be deleted.

    None: the part is kept for ever, as far as rules go.
    """

    received_at: datetime
    decided_by: EffectiveRule | None
    """Null: no rule is of it, and it is kept."""
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
    """Explain one inference by the policies in force and the holds. Raises NotFound."""
    policy = (await policies.find_effective_policies(connection, [model])).get(
        model, EffectivePolicy()
    )
    rules = await selection.compile_rules(connection, policy)
    where = Where(model, uid, UUID(int=uid.int + 1))
    number = rules.build_number(where).label("rule")
    query = select(number, inference.c.received_at).where(where.of(inference))
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound("The inference has just been deleted.")
    deciding_rule = None if row.rule == selection.UNDECIDED else policy.rules[row.rule]
    held = await holds.find_holds(
        connection, await holds.list_in_force(connection, [model]), model, [uid]
    )
    at = row.received_at
    rule = None if deciding_rule is None else deciding_rule.rule
    return RetentionExplanation(
        received_at=at,
        decided_by=deciding_rule,
        limits=() if policy.limit is None else (policy.limit,),
        input_goes_at=_find_deletion_time(deciding_rule, rule and rule.input, at),
        response_goes_at=_find_deletion_time(deciding_rule, rule and rule.response, at),
        inference_goes_at=_find_deletion_time(deciding_rule, rule and rule.keep_inference, at),
        held_by=held.get(uid),
    )


def _find_deletion_time(
    deciding_rule: EffectiveRule | None, keep: str | None, received_at: datetime
) -> datetime | None:
    duration = None if keep is None else parse_duration(keep)
    if deciding_rule is None or duration is None:
        return None
    return _find_latest([duration, *deciding_rule.minimum], received_at)


def _find_latest(durations: Iterable[Duration], received_at: datetime) -> datetime | None:
    instants = [duration.after(received_at) for duration in durations]
    finite = [instant for instant in instants if instant is not None]
    return max(finite) if len(finite) == len(instants) else None
