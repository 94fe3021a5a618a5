"""Taking values out of entries: an erasure's. Who did what when stays, and the chain closes."""

import json
from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Text, and_, cast, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import UUID as PG_UUID
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.access.audit import Action
from inference_store.store.tables import audit, audit_link

ACTOR: Final = "retention"
_AT_ONCE = 10_000


async def forget(
    connection: AsyncConnection,
    erasure: UUID,
    *,
    uids: Collection[UUID] = (),
    mentions: Collection[Sequence[str]] = (),
) -> int:
    """Take `uid` and `detail` out of every entry about these inferences, and of every one whose
    detail mentions all words of one of `mentions` (as a subject's key and value); how many.

    In the erasure's own transaction; repeatable. An entry of its own lists those it took from:
    values that are gone without one are a fault of the chain. `mentions` reads the whole audit:
    once an erasure, not once a batch.
    """
    taken = 0
    while found := await _matching(connection, uids, mentions):
        said = {"actor": ACTOR, "action": Action.AUDIT_VALUES_TAKEN.value}
        detail = {"erasure": str(erasure), "entries": found}
        made = insert(audit).values(**said, detail=detail).returning(audit.c.id)
        by = (await connection.execute(made)).scalar_one()
        of_entries = update(audit).where(audit.c.id == func.any(found))
        await connection.execute(of_entries.values(uid=None, detail={}, taken_by=by))
        of_links = update(audit_link).where(audit_link.c.entry == func.any(found))
        await connection.execute(of_links.values(salt=None))
        taken += len(found)
    return taken


async def _matching(
    connection: AsyncConnection, uids: Collection[UUID], mentions: Collection[Sequence[str]]
) -> list[int]:
    wanted: list[ColumnElement[bool]] = [and_(*map(_mentioned, each)) for each in mentions if each]
    if uids:
        wanted.append(audit.c.uid == func.any(cast(list(uids), ARRAY(PG_UUID(as_uuid=True)))))
    if not wanted:
        return []
    # what an erasure took cannot be taken from what says so
    whole = audit.c.taken_by.is_(None) & (audit.c.action != Action.AUDIT_VALUES_TAKEN.value)
    query = select(audit.c.id).where(whole, or_(*wanted)).order_by(audit.c.id).limit(_AT_ONCE)
    return list((await connection.execute(query.with_for_update())).scalars())


def _mentioned(word: str) -> ColumnElement[bool]:
    """As JSON writes it inside of a text, in whatever member it stands; also as CQL2 quotes it."""
    written = cast(audit.c.detail, Text)
    forms = {json.dumps(each, ensure_ascii=False)[1:-1] for each in (word, word.replace("'", "''"))}
    return or_(*(func.strpos(written, form) > 0 for form in sorted(forms)))
