"""Redacts what past policies, ended erasures, saved views and exports say about an erased subject.

It is in filters, names and reasons, of records within the erasure's reach. What is in force or not
over is left alone: it has to keep its meaning. Each call reads a page and is repeatable; after a
crash the page is read again.
"""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, case, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import AccessScope
from inference_store.erasure.audit_chain import mentions, redact_mentions
from inference_store.erasure.progress.erasure import ENDED, match_erasures
from inference_store.erasure.request.criteria import Subject
from inference_store.index.scope_filters import match_models, match_policies
from inference_store.index.tables import audit, erasure, export_job, policy_version, saved_view
from inference_store.query.sort import NEWEST_FIRST

_VERSION = (policy_version.c.level, policy_version.c.subject, policy_version.c.revision)
FIRST_ENTRY = (0,)
FIRST_VERSION = ("", "", 0)
FIRST_ERASURE = (UUID(int=0),)
FIRST_VIEW = (UUID(int=0),)
FIRST_EXPORT = (UUID(int=0),)
_TEXTS = ("name", "filter", "sort", "columns")


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redaction for an erasure: mentions of its subject in the records within its reach."""

    erasure: UUID
    subject: Subject
    reach: AccessScope

    def is_about(self, texts: Any) -> bool:
        """Return whether the texts mention the subject."""
        return mentions(texts, self.subject.key, self.subject.value)


async def redact_audit(
    connection: AsyncConnection, by: Redaction, after: tuple[Any, ...], limit: int
) -> tuple[int, tuple[Any, ...] | None]:
    """Redact the next entries of the audit.

    Return how many were redacted, and the last one that was read; None: there are no more.
    """
    subject, is_in_reach = by.subject, match_models(by.reach, audit.c.model)
    redacted, last = await redact_mentions(
        connection,
        by.erasure,
        (subject.key, subject.value),
        is_in_reach,
        after=after[0],
        limit=limit,
    )
    return redacted, None if last is None else (last,)


async def redact_policies(
    connection: AsyncConnection, by: Redaction, after: tuple[Any, ...], limit: int
) -> tuple[int, tuple[Any, ...] | None]:
    """Redact the next past versions of policies; return the same."""
    here = policy_version.c
    query = select(*_VERSION, here.document, here.reason)
    query = query.where(_is_past(), match_policies(by.reach), tuple_(*_VERSION) > tuple_(*after))
    page = (await connection.execute(query.order_by(*_VERSION).limit(limit))).all()
    redacted = 0
    for row in page:
        values = {"document": row.document, "reason": row.reason}
        rest = _redact_version(values, by.subject, f"erased by the erasure {by.erasure}")
        if rest != values:
            same = tuple_(*_VERSION) == tuple_(row.level, row.subject, row.revision)
            await connection.execute(policy_version.update().where(same).values(rest))
            redacted += 1
    return redacted, tuple(page[-1][:3]) if len(page) == limit else None


async def redact_erasures(
    connection: AsyncConnection, by: Redaction, after: tuple[Any, ...], limit: int
) -> tuple[int, tuple[Any, ...] | None]:
    """Redact the filters by which ended erasures were requested; return the same."""
    here = erasure.c
    query = select(here.id, here.asked).where(here.id > after[0], here.state.in_(ENDED))
    query = (
        query.where(here.asked.has_key("filter"), match_erasures(by.reach))
        .order_by(here.id)
        .limit(limit)
    )
    page = (await connection.execute(query)).all()
    mentioning = [row.id for row in page if by.is_about(row.asked)]
    updated = erasure.update().where(here.id.in_(mentioning))
    await connection.execute(
        updated.values(asked={"filter": f"erased by the erasure {by.erasure}"})
    )
    return len(mentioning), (page[-1].id,) if len(page) == limit else None


async def redact_views(
    connection: AsyncConnection, by: Redaction, after: tuple[Any, ...], limit: int
) -> tuple[int, tuple[Any, ...] | None]:
    """Redact all texts of the next saved views; return the same."""
    here = saved_view.c
    query = select(here.id, *(here[name] for name in _TEXTS)).where(here.id > after[0])
    query = query.where(match_models(by.reach, here.model))
    page = (await connection.execute(query.order_by(here.id).limit(limit))).all()
    texts = {row.id: {name: getattr(row, name) for name in _TEXTS} for row in page}
    mentioning = [id for id, text in texts.items() if by.is_about(text)]
    rest: dict[str, Any] = {
        "name": None,
        "filter": None,
        "sort": NEWEST_FIRST,
        "columns": [],
        "erased_by": by.erasure,
    }
    updated = saved_view.update().where(here.id.in_(mentioning))
    await connection.execute(updated.values({**rest, "revision": here.revision + 1}))
    return len(mentioning), (page[-1].id,) if len(page) == limit else None


async def redact_exports(
    connection: AsyncConnection, by: Redaction, after: tuple[Any, ...], limit: int
) -> tuple[int, tuple[Any, ...] | None]:
    """Redact the filters of the next exports; return the same. One that still searches by its
    filter fails."""
    here = export_job.c
    filters = (here.document["filter"], here.document["saved"])
    query = select(here.id, here.error, *filters).where(
        here.id > after[0], match_models(by.reach, here.model)
    )
    page = (await connection.execute(query.order_by(here.id).limit(limit))).all()
    mentioning = [row.id for row in page if by.is_about(list(row[1:]))]
    taken = {"filter": None, "saved": None}
    error = case((here.error.is_not(None), f"erased by the erasure {by.erasure}"))
    values = {"document": here.document.concat(taken), "error": error, "erased_by": by.erasure}
    await connection.execute(export_job.update().where(here.id.in_(mentioning)).values(values))
    return len(mentioning), (page[-1].id,) if len(page) == limit else None


def _is_past() -> ColumnElement[bool]:
    """Return the condition of versions that can never be in force again."""
    here, newer = policy_version.c, policy_version.alias()
    begun = select(newer.c.revision).where(
        newer.c.level == here.level,
        newer.c.subject == here.subject,
        newer.c.revision > here.revision,
        newer.c.revoked_at.is_(None),
        newer.c.effective_at <= func.now(),
    )
    return or_(here.revoked_at.is_not(None), begun.correlate(policy_version).exists())


def _redact_version(values: dict[str, Any], subject: Subject, instead: str) -> dict[str, Any]:
    """Return a version's document and reason without the subject; ages and limits stay."""
    rest = dict(values)
    if mentions(values["reason"], subject.key, subject.value):
        rest["reason"] = instead
    if values["document"] is not None:
        document = json.loads(values["document"])
        for rule in document["rules"]:
            if mentions(rule, subject.key, subject.value):
                rule.pop("name", None)
                rule.update(filter=instead, saved=instead)
        rest["document"] = json.dumps(document, sort_keys=True)
    return rest
