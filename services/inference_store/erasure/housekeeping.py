"""The records that the store keeps of its own work, in one list: each kind has a retention of its
own.

What is still to be decided or done is never deleted: open dead letters, unfinished erasures.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy import (
    Column,
    ColumnElement,
    Select,
    and_,
    case,
    cast,
    delete,
    func,
    null,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.access.rights import ScopePart
from inference_store.erasure import audit_chain
from inference_store.erasure.holds import VALUES
from inference_store.erasure.mentions import mentions
from inference_store.erasure.pending_deletions import select_marks
from inference_store.erasure.progress import ENDED, Erasure, list_models, match_erasures
from inference_store.erasure.requests import Subject
from inference_store.index import registrations
from inference_store.index.registrations import match_models, match_policies
from inference_store.index.tables import (
    audit,
    awaiting_truth,
    erasing,
    erasure,
    erasure_model,
    erasure_obstacle,
    export_job,
    former_model,
    hold,
    hold_change,
    inference,
    metadata_key_delta,
    metadata_key_seen,
    model_key,
    model_label,
    policy_sweep,
    policy_version,
    reconciliation,
    reconciliation_finding,
    registration,
    retention_run,
    saved_view,
    segment,
    unsettled_event,
)
from inference_store.index.unsettled import SETTLED
from inference_store.inference.errors import Conflict
from inference_store.query.order import NEWEST_FIRST

Delete = Callable[[AsyncConnection, float, int], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """One kind: which records may be deleted, by which of their times, after which setting's
    seconds. `parts`: the columns of rows that are deleted with them; `delete`: how, if they are
    not simply deleted."""

    name: str
    sentence: str
    setting: str
    time: Column[datetime]
    may_go: ColumnElement[bool]
    parts: Sequence[Column[Any]] = ()
    delete: Delete | None = None

    async def prune(self, connection: AsyncConnection, seconds: float, limit: int) -> int:
        """Remove what is older than so many seconds, the oldest first, at most so many; return how
        many."""
        if self.delete is not None:
            return await self.delete(connection, seconds, limit)
        key: Column[Any] = self.time.table.c.id
        old = select(key).where(self.may_go, self.time < _ago(seconds))
        ids = list((await connection.execute(old.order_by(self.time).limit(limit))).scalars())
        for part in (*self.parts, key) if ids else ():
            await connection.execute(delete(part.table).where(part == func.any(ids)))
        return len(ids)


_REPORT: Final = reconciliation.c
# Reports whose orphans are being erased: the report decides about each of them.
_IN_ERASURE: Final = select(cast(erasure.c.asked["report"].as_string(), UUID_TYPE)).where(
    erasure.c.cause == "orphans", erasure.c.state.not_in(ENDED)
)
ENDED_REPORTS: Final = and_(_REPORT.state.in_(("done", "failed")), _REPORT.id.not_in(_IN_ERASURE))
"""Reports of reconciliations that nothing depends on any more."""
REBUILT_NOTHING: Final = func.coalesce(_REPORT.counts["rebuilt"].as_integer(), 0) == 0
"""Reports whose counts the accounting does not name."""
_HAS_FINDINGS: Final = (
    select(reconciliation_finding.c.kind)
    .where(reconciliation_finding.c.reconciliation == _REPORT.id)
    .correlate(reconciliation)
    .exists()
)
_REPORTS: Final = and_(ENDED_REPORTS, or_(REBUILT_NOTHING, _HAS_FINDINGS))


async def _delete_reports(connection: AsyncConnection, seconds: float, _limit: int) -> int:
    """Delete one report at a time: each may have a million findings."""
    old = select(_REPORT.id).where(_REPORTS, _REPORT.finished_at < _ago(seconds))
    id = await connection.scalar(old.order_by(_REPORT.finished_at).limit(1))
    if id is None:
        return 0
    findings = reconciliation_finding.c.reconciliation == id
    await connection.execute(reconciliation_finding.delete().where(findings))
    await connection.execute(reconciliation.delete().where(_REPORT.id == id, REBUILT_NOTHING))
    return 1


def _ago(seconds: float) -> ColumnElement[datetime]:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


RECORD_KINDS: Final = (
    RecordKind(
        name="dead_letters",
        sentence="Dead letters that were discarded or redriven; open ones stay.",
        setting="dead_letter_keep_seconds",
        time=unsettled_event.c.updated_at,
        may_go=unsettled_event.c.state.in_(SETTLED),
    ),
    RecordKind(
        name="runs",
        sentence="Runs of retention that have ended.",
        setting="audit_keep_seconds",
        time=retention_run.c.finished_at,
        may_go=retention_run.c.state.in_(("done", "failed")),
    ),
    RecordKind(
        name="erasures",
        sentence="Erasures of which nothing is left; their certificates stay.",
        setting="audit_keep_seconds",
        time=erasure.c.finished_at,
        may_go=erasure.c.state.in_(ENDED),
        parts=(erasure_model.c.erasure, erasure_obstacle.c.erasure),
    ),
    RecordKind(
        name="reconciliations",
        sentence="Reports of reconciliations, with what was found; not while their orphans are"
        " erased.",
        setting="audit_keep_seconds",
        time=_REPORT.finished_at,
        may_go=_REPORTS,
        delete=_delete_reports,
    ),
    RecordKind(
        name="audit",
        sentence="Entries of the audit; a checkpoint of its chain stays.",
        setting="audit_keep_seconds",
        time=audit.c.at,
        may_go=true(),
        # up to the newest checkpoint, which says what is old
        delete=lambda connection, _, limit: audit_chain.prune_entries(connection, limit=limit),
    ),
)


async def find_overdue_seconds(connection: AsyncConnection, keep: Mapping[str, float]) -> float:
    """Return by how much the oldest record exceeds its retention; 0: none does.

    `keep`: seconds by setting.
    """
    longest = 0.0
    for kind in RECORD_KINDS:
        age = func.extract("epoch", func.now() - func.min(kind.time))
        seconds = await connection.scalar(select(age).where(kind.may_go))
        if seconds is not None:
            longest = max(longest, float(seconds) - keep[kind.setting])
    return longest


# Redacts what past policies, ended erasures, saved views and exports say about an erased subject.
#
# It is in filters, names and reasons, of records within the erasure's reach. What is in force or
# not over is left alone: it has to keep its meaning. Each call reads a page and is repeatable;
# after a crash the page is read again.
#
# Who may erase from one model must neither change nor learn what stands about another. So an
# erasure reaches what belongs to its own models; what belongs to no single model (entries of the
# audit about the whole store, defaults, holds of every model), only if no model is outside of it.


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


# Rows with the texts that may mention the subject behind the columns of their key; and what stands
# in the place of these texts, or the function that redacts the rows and returns how many.
_Change: TypeAlias = Callable[[AsyncConnection, Sequence[Any]], Awaitable[int]]
_Texts: TypeAlias = tuple[Select[Any], Mapping[str, Any] | _Change]


def _list_audit(by: Redaction) -> _Texts:
    async def redact(connection: AsyncConnection, rows: Sequence[Any]) -> int:
        return await audit_chain.redact_entries(connection, by.erasure, [row.id for row in rows])

    return audit_chain.select_details().where(match_models(by.reach, audit.c.model)), redact


def _list_policies(by: Redaction) -> _Texts:
    async def redact(connection: AsyncConnection, rows: Sequence[Any]) -> int:
        redacted = 0
        for row in rows:
            values = {"document": row.document, "reason": row.reason}
            if (rest := _redact_version(values, by)) != values:
                same = tuple_(*_VERSION) == tuple_(*row[:3])
                await connection.execute(policy_version.update().where(same).values(rest))
                redacted += 1
        return redacted

    query = select(*_VERSION, policy_version.c.document, policy_version.c.reason)
    return query.where(_is_past(), match_policies(by.reach)), redact


def _list_erasures(by: Redaction) -> _Texts:
    """The filters by which ended erasures were requested."""
    here = erasure.c
    query = select(here.id, here.asked).where(here.state.in_(ENDED), match_erasures(by.reach))
    return query.where(here.asked.has_key("filter")), {"asked": {"filter": by.instead}}


def _list_views(by: Redaction) -> _Texts:
    here = saved_view.c
    query = select(here.id, here.name, here.filter, here.sort, here.columns, here.watch)
    values: dict[str, Any] = {"name": None, "filter": None, "sort": NEWEST_FIRST, "columns": []}
    values |= {"watch": None, "erased_by": by.erasure, "revision": here.revision + 1}
    return query.where(match_models(by.reach, here.model)), values


def _list_exports(by: Redaction) -> _Texts:
    """The filters of exports. One that still searches by its filter fails."""
    here = export_job.c
    query = select(here.id, here.error, here.document["filter"], here.document["saved"])
    taken = {"filter": None, "saved": None}
    error = case((here.error.is_not(None), by.instead))
    values = {"document": here.document.concat(taken), "error": error, "erased_by": by.erasure}
    return query.where(match_models(by.reach, here.model)), values


def _list_revisions(by: Redaction) -> _Texts:
    here = hold_change.c
    texts = (here.document[name] for name in VALUES)
    query = select(here.hold, here.revision, *texts).join(hold, hold.c.id == here.hold)
    return query.where(match_models(by.reach, hold.c.model)), {"forget_when_over": True}


RECORDED: Final = hold_change.name
"""The table whose rows are only recorded: they lose what they say once the hold is over."""
REDACTED: Final[Mapping[str, tuple[Callable[[Redaction], _Texts], Position]]] = {
    "audit": (_list_audit, (0,)),
    "policy_version": (_list_policies, ("", "", 0)),
    "erasure": (_list_erasures, (UUID(int=0),)),
    "saved_view": (_list_views, (UUID(int=0),)),
    "export_job": (_list_exports, (UUID(int=0),)),
    RECORDED: (_list_revisions, (UUID(int=0), 0)),
}
"""By the table whose rows may mention a subject: its texts, and the position before the first."""


async def redact_page(
    connection: AsyncConnection, by: Redaction, table: str, after: Position, limit: int
) -> tuple[int, Position | None]:
    """Redact the rows of the next page whose texts mention the subject; return how many, and the
    last one that was read; None: there are no more."""
    query, change = REDACTED[table][0](by)
    size = len(after)
    columns: list[Any] = list(query.selected_columns)[:size]
    key = tuple_(*columns)
    query = query.where(key > tuple_(*after)).order_by(*columns).limit(limit)
    page = (await connection.execute(query)).all()
    mentioning = [row for row in page if by.is_about(list(row[size:]))]
    redacted = len(mentioning)
    if mentioning and callable(change):
        redacted = await change(connection, mentioning)
    elif mentioning:
        keys = [tuple(row[:size]) for row in mentioning]
        await connection.execute(columns[0].table.update().where(key.in_(keys)).values(change))
    return redacted, tuple(page[-1][:size]) if len(page) == limit else None


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


# Removes a model: its registration, and what depends on it.

_REMOVED: Final = ("cancelled", "expired")
_UNENDED: Final = "an erasure that has not ended"
# The registration comes last, because the others depend on it.
_OF_A_MODEL = (
    saved_view,
    policy_sweep,
    model_key,
    model_label,
    metadata_key_seen,
    metadata_key_delta,
    segment,
    registration,
)


async def describe_removal(connection: AsyncConnection, model_id: str) -> Mapping[str, Any]:
    """Return the body of the ledger's entry. Raises Conflict if something of a model is left;
    NotFound.

    The row is locked first: ingesters take a share of that lock, so that no inference arrives
    between the check and the removal.
    """
    registered = await registrations.get(connection, model_id, lock=True)
    rest = await _find_rest(connection, registered.model)
    if rest == _UNENDED:
        raise Conflict(f"The model {model_id!r} is of an erasure that has not ended: wait for it.")
    if rest is not None:
        raise Conflict(f"The model {model_id!r} still has {rest}: delete them first.")
    return {"model_id": model_id, "revision": registered.revision}


async def _find_rest(connection: AsyncConnection, model: int) -> str | None:
    for table, what in (
        (inference, "inferences"),
        (erasing, "unfinished erasures"),
        (awaiting_truth, "ground truth that waits (DELETE …/ground-truth)"),
    ):
        first = select(table.c.model).where(table.c.model == model).limit(1)
        if (await connection.scalar(first)) is not None:
            return what
    # its erasure names it in the ledger, and would name a model that does not exist any more
    unended = select(erasure_model.c.model).join(erasure, erasure.c.id == erasure_model.c.erasure)
    unended = unended.where(erasure_model.c.model == model, erasure.c.finished_at.is_(None))
    return None if (await connection.scalar(unended.limit(1))) is None else _UNENDED


async def apply_removed(
    connection: AsyncConnection, body: Mapping[str, Any], _: datetime, __: str
) -> None:
    """Remove a registration and what depends on it. Repeatable.

    A replay may find a model in an older backup whose whole rest is being erased: it is removed
    with that. What has arrived since the entry was written belongs to a model that its event
    registers again: what its owner said about it is deleted, and so is the policy. A model that its
    owner has registered since stays as it is.
    """
    model_id = body["model_id"]
    # otherwise a model of the same id would have its policy
    own = (policy_version.c.level == "model", policy_version.c.subject == model_id)
    await connection.execute(policy_version.delete().where(*own))
    query = select(registration.c.model, registration.c.revision)
    query = query.where(registration.c.model_id == model_id).with_for_update()
    row = (await connection.execute(query)).first()
    if row is None:
        return
    model = row.model
    if row.revision > body.get("revision", row.revision):
        return
    if await _find_rest(connection, model) is not None:
        await _keep_model(connection, model)
    else:
        await _remove_model(connection, model, model_id)


async def remove_emptied(connection: AsyncConnection) -> int:
    """Remove the models of which nothing is left now; return how many.

    A model that has got a policy since stays.
    """
    here, versions = registration.c, policy_version.c
    own = select(versions.subject).where(
        versions.level == "model", versions.subject == here.model_id
    )
    query = select(here.model, here.model_id).where(
        here.registered_by == registrations.GOES, ~own.exists()
    )
    emptied = (await connection.execute(query.order_by(here.model).with_for_update())).all()
    empty = [
        model_row for model_row in emptied if await _find_rest(connection, model_row.model) is None
    ]
    for model_row in empty:
        await _remove_model(connection, model_row.model, model_row.model_id)
    return len(empty)


async def _keep_model(connection: AsyncConnection, model: int) -> None:
    await connection.execute(saved_view.delete().where(saved_view.c.model == model))
    marked = select_marks(inference).where(erasing.c.scope == "inference")
    arrived = select(inference.c.uid).where(inference.c.model == model, ~marked.exists()).limit(1)
    has_arrived = (await connection.scalar(arrived)) is not None
    # nobody knows whether the events that have arrived would set the rest
    values = {"class_labels": [], "output_mapping": null(), "registered_by": "event"}
    here = registration.c
    changed = registration.update().where(here.model == model)
    changed = changed.values(values if has_arrived else {"registered_by": registrations.GOES})
    await connection.execute(changed.values(revision=here.revision + 1, updated_at=func.now()))


async def _remove_model(connection: AsyncConnection, model: int, model_id: str) -> None:
    values = {"model_id": model_id, "model": model}
    await connection.execute(upsert(former_model).values(values).on_conflict_do_nothing())
    # the rows of its exports go when their objects are gone
    here = export_job.c
    exports = export_job.update().where(here.model == model, here.state.not_in(_REMOVED))
    await connection.execute(exports.values(state="cancelling", retry_at=None))
    for table in _OF_A_MODEL:
        await connection.execute(table.delete().where(table.c.model == model))
