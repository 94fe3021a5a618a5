"""Redacts what past policies, ended erasures, saved views and exports say about an erased subject.

It is in filters, names and reasons, of records within the erasure's reach. What is in force or
not over is left alone: it has to keep its meaning. Each call reads a page and is repeatable;
after a crash the page is read again.

Who may erase from one model must neither change nor learn what stands about another. So an
erasure reaches what belongs to its own models; what belongs to no single model (entries of the
audit about the whole store, defaults, holds of every model), only if no model is outside of it.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Select, case, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.access.rights import ScopePart
from inference_store.erasure.audit_chain import redact_mentions
from inference_store.erasure.mentions import mentions
from inference_store.erasure.progress import ENDED, Erasure, list_models, match_erasures
from inference_store.erasure.requests import Subject
from inference_store.index.scope_filters import match_models, match_policies
from inference_store.index.tables import (
    audit,
    erasure,
    export_job,
    policy_version,
    registration,
    saved_view,
)
from inference_store.query.sort import NEWEST_FIRST


async def find_reach(connection: AsyncConnection, erasure: Erasure) -> AccessScope:
    """Return the scope of an erasure's models, and of the projects that have no other models."""
    here = registration.c
    is_inside = here.model.in_(await list_models(connection, erasure))
    query = select(here.project_id, func.bool_and(is_inside).label("is_whole"))
    query = query.add_columns(func.array_agg(here.model_id).filter(is_inside).label("models"))
    projects = (await connection.execute(query.group_by(here.project_id))).all()
    if projects and all(row.is_whole for row in projects):
        return EVERYTHING
    whole = frozenset(row.project_id for row in projects if row.is_whole and row.project_id)
    models = frozenset(model for row in projects for model in row.models or ())
    return AccessScope((ScopePart(whole, models),))


Position: TypeAlias = tuple[Any, ...]
Page: TypeAlias = tuple[int, Position | None]
"""How many were redacted, and the last one that was read; None: there are no more."""
_VERSION = (policy_version.c.level, policy_version.c.subject, policy_version.c.revision)


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redaction for an erasure: mentions of its subject in the records within its reach."""

    erasure: UUID
    subject: Subject
    reach: AccessScope

    @property
    def instead(self) -> str:
        """What stands in the place of a text."""
        return f"erased by the erasure {self.erasure}"

    def is_about(self, texts: Any) -> bool:
        """Return whether the texts mention the subject."""
        return mentions(texts, self.subject.key, self.subject.value)


async def _redact_audit(
    connection: AsyncConnection, by: Redaction, after: Position, limit: int
) -> Page:
    subject, is_in_reach = (by.subject.key, by.subject.value), match_models(by.reach, audit.c.model)
    redacted, last = await redact_mentions(
        connection, by.erasure, subject, is_in_reach, after=after[0], limit=limit
    )
    return redacted, None if last is None else (last,)


async def _redact_policies(
    connection: AsyncConnection, by: Redaction, after: Position, limit: int
) -> Page:
    here = policy_version.c
    query = select(*_VERSION, here.document, here.reason)
    query = query.where(_is_past(), match_policies(by.reach), tuple_(*_VERSION) > tuple_(*after))
    page = (await connection.execute(query.order_by(*_VERSION).limit(limit))).all()
    redacted = 0
    for row in page:
        values = {"document": row.document, "reason": row.reason}
        rest = _redact_version(values, by)
        if rest != values:
            same = tuple_(*_VERSION) == tuple_(row.level, row.subject, row.revision)
            await connection.execute(policy_version.update().where(same).values(rest))
            redacted += 1
    return redacted, tuple(page[-1][:3]) if len(page) == limit else None


async def _redact_erasures(
    connection: AsyncConnection, by: Redaction, after: Position, limit: int
) -> Page:
    """Redact the filters by which ended erasures were requested."""
    here = erasure.c
    query = select(here.id, here.asked).where(here.state.in_(ENDED), match_erasures(by.reach))
    query = query.where(here.asked.has_key("filter"))
    values = {"asked": {"filter": by.instead}}
    return await _redact_rows(connection, by, query, after, limit, values)


async def _redact_views(
    connection: AsyncConnection, by: Redaction, after: Position, limit: int
) -> Page:
    here = saved_view.c
    query = select(here.id, here.name, here.filter, here.sort, here.columns)
    query = query.where(match_models(by.reach, here.model))
    values: dict[str, Any] = {"name": None, "filter": None, "sort": NEWEST_FIRST, "columns": []}
    values |= {"erased_by": by.erasure, "revision": here.revision + 1}
    return await _redact_rows(connection, by, query, after, limit, values)


async def _redact_exports(
    connection: AsyncConnection, by: Redaction, after: Position, limit: int
) -> Page:
    """Redact the filters of exports. One that still searches by its filter fails."""
    here = export_job.c
    query = select(here.id, here.error, here.document["filter"], here.document["saved"])
    query = query.where(match_models(by.reach, here.model))
    taken = {"filter": None, "saved": None}
    error = case((here.error.is_not(None), by.instead))
    values = {"document": here.document.concat(taken), "error": error, "erased_by": by.erasure}
    return await _redact_rows(connection, by, query, after, limit, values)


Redact: TypeAlias = Callable[[AsyncConnection, Redaction, Position, int], Awaitable[Page]]
REDACTIONS: Final[Mapping[str, tuple[Redact, Position]]] = {
    "audit": (_redact_audit, (0,)),
    "policy_version": (_redact_policies, ("", "", 0)),
    "erasure": (_redact_erasures, (UUID(int=0),)),
    "saved_view": (_redact_views, (UUID(int=0),)),
    "export_job": (_redact_exports, (UUID(int=0),)),
}
"""By the table whose rows may mention a subject: the function that redacts the next page, and the
position before the first."""


async def _redact_rows(  # noqa: PLR0917
    connection: AsyncConnection,
    by: Redaction,
    query: Select[Any],
    after: Position,
    limit: int,
    values: Mapping[str, Any],
) -> Page:
    """Set these values in the rows whose texts, all columns but the first, mention the subject."""
    id: Any = query.selected_columns[0]
    page = (await connection.execute(query.where(id > after[0]).order_by(id).limit(limit))).all()
    mentioning = [row[0] for row in page if by.is_about(list(row[1:]))]
    await connection.execute(id.table.update().where(id.in_(mentioning)).values(values))
    return len(mentioning), (page[-1][0],) if len(page) == limit else None


def _is_past() -> ColumnElement[bool]:
    here, newer = policy_version.c, policy_version.alias()
    begun = select(newer.c.revision).where(
        newer.c.level == here.level,
        newer.c.subject == here.subject,
        newer.c.revision > here.revision,
        newer.c.revoked_at.is_(None),
        newer.c.effective_at <= func.now(),
    )
    return or_(here.revoked_at.is_not(None), begun.correlate(policy_version).exists())


def _redact_version(values: dict[str, Any], by: Redaction) -> dict[str, Any]:
    """Return a version's document and reason without the subject; ages and limits stay."""
    rest = dict(values)
    if by.is_about(values["reason"]):
        rest["reason"] = by.instead
    if values["document"] is not None:
        document = json.loads(values["document"])
        for rule in document["rules"]:
            if by.is_about(rule):
                rule.pop("name", None)
                rule.update(filter=by.instead, saved=by.instead)
        rest["document"] = json.dumps(document, sort_keys=True)
    return rest
