"""Why an inference is still there, and when what of it goes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies
from inference_store.erasure.holds import Hold
from inference_store.erasure.policies import Chain, Decider, LimitOf
from inference_store.erasure.policies.durations import Duration, parse_duration
from inference_store.erasure.select import selection
from inference_store.index.tables import inference
from inference_store.inference.errors import NotFound
from inference_store.query.scan_range import ScanRange as Where


@dataclass(frozen=True, slots=True)
class Kept:
    """The rule that decides about an inference, and the instants from which a part may be gone.

    None: the part is kept for ever, as far as rules go; a limit may take it earlier.
    """

    received_at: datetime
    decided_by: Decider | None
    limits: tuple[LimitOf, ...]
    input_goes_at: datetime | None
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    held_by: Hold | None


async def explain(connection: AsyncConnection, model: int, uid: UUID) -> Kept:
    """What the policies in force and the holds say of one inference. Raises NotFound."""
    chain = (await policies.by_model(connection, [model])).get(model, Chain())
    rules = await selection.decided(connection, chain)
    where = Where(model, uid, UUID(int=uid.int + 1))
    number = rules.rule(where).label("rule")
    query = select(number, inference.c.received_at).where(where.of(inference))
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound("The inference has just been deleted.")
    found = None if row.rule == selection.UNDECIDED else chain.rules[row.rule]
    held = await holds.holding(connection, await holds.in_force(connection, [model]), model, [uid])
    at = row.received_at
    rule = None if found is None else found.rule
    return Kept(
        received_at=at,
        decided_by=found,
        limits=chain.limits,
        input_goes_at=_goes(found, rule and rule.input, at),
        response_goes_at=_goes(found, rule and rule.response, at),
        inference_goes_at=_goes(found, rule and rule.keep_inference, at),
        held_by=held.get(uid),
    )


def _goes(found: Decider | None, keep: str | None, received_at: datetime) -> datetime | None:
    duration = None if keep is None else parse_duration(keep)
    if found is None or duration is None:
        return None
    return _latest([duration, *found.minimum], received_at)


def _latest(durations: Iterable[Duration], received_at: datetime) -> datetime | None:
    found = [each.after(received_at) for each in durations]
    known = [each for each in found if each is not None]
    return max(known) if len(known) == len(found) else None
