"""What past policies and ended erasures say of an erased subject: in filters, names and reasons.

What is in force or not over is left alone: it still has to mean what it says. Each look takes a
page, and is repeatable; a crash leaves what is looked at again.
"""

import json
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.audit_chain import mentions
from inference_store.erasure.erasures import ENDED
from inference_store.erasure.erasures.chosen import Subject
from inference_store.index.tables import erasure, policy_version

_VERSION = (policy_version.c.level, policy_version.c.subject, policy_version.c.revision)
FIRST_VERSION = ("", "", 0)
FIRST_ERASURE = (UUID(int=0),)


async def take_from_policies(
    connection: AsyncConnection, by: UUID, subject: Subject, after: tuple[Any, ...], limit: int
) -> tuple[int, tuple[Any, ...] | None]:
    """Take it out of the next past versions of policies: out of how many, and the last that was
    looked at; None: there are no more."""
    here = policy_version.c
    query = select(*_VERSION, here.document, here.reason)
    query = query.where(_is_past(), tuple_(*_VERSION) > tuple_(*after))
    page = (await connection.execute(query.order_by(*_VERSION).limit(limit))).all()
    taken = 0
    for row in page:
        said = {"document": row.document, "reason": row.reason}
        left = _without(said, subject, f"erased by the erasure {by}")
        if left != said:
            same = tuple_(*_VERSION) == tuple_(row.level, row.subject, row.revision)
            await connection.execute(policy_version.update().where(same).values(left))
            taken += 1
    return taken, tuple(page[-1][:3]) if len(page) == limit else None


async def take_from_erasures(
    connection: AsyncConnection, by: UUID, subject: Subject, after: tuple[Any, ...], limit: int
) -> tuple[int, tuple[Any, ...] | None]:
    """The same of the filters by which erasures that have ended were asked for."""
    here = erasure.c
    query = select(here.id, here.asked).where(here.id > after[0], here.state.in_(ENDED))
    query = query.where(here.asked.has_key("filter")).order_by(here.id).limit(limit)
    page = (await connection.execute(query)).all()
    found = [row.id for row in page if mentions(row.asked, subject.key, subject.value)]
    forgotten = erasure.update().where(here.id.in_(found))
    await connection.execute(forgotten.values(asked={"filter": f"erased by the erasure {by}"}))
    return len(found), (page[-1].id,) if len(page) == limit else None


def _is_past() -> ColumnElement[bool]:
    """Versions that can never be in force again."""
    here, newer = policy_version.c, policy_version.alias()
    begun = select(newer.c.revision).where(
        newer.c.level == here.level,
        newer.c.subject == here.subject,
        newer.c.revision > here.revision,
        newer.c.revoked_at.is_(None),
        newer.c.effective_at <= func.now(),
    )
    return or_(here.revoked_at.is_not(None), begun.correlate(policy_version).exists())


def _without(said: dict[str, Any], subject: Subject, instead: str) -> dict[str, Any]:
    """A version's document and reason without the subject; ages and limits stay."""
    left = dict(said)
    if mentions(said["reason"], subject.key, subject.value):
        left["reason"] = instead
    if said["document"] is not None:
        document = json.loads(said["document"])
        for rule in document["rules"]:
            if mentions(rule, subject.key, subject.value):
                rule.pop("name", None)
                rule.update(filter=instead, saved=instead)
        left["document"] = json.dumps(document, sort_keys=True)
    return left
