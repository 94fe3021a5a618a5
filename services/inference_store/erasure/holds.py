"""Legal holds: filters whose inferences nothing may delete. NULL protects, and so does a doubt."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, and_, case, false, func, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.policies import watermarks
from inference_store.index import model_numbers, registrations
from inference_store.index.database import is_rows_fault
from inference_store.index.registrations import match_models
from inference_store.index.sidecars import among, by_model
from inference_store.index.tables import erasing, hold, hold_change, inference
from inference_store.index.writing import Indexable
from inference_store.inference.errors import Fault, HoldUnreadable, Invalid, NotFound, StoreError
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.inference.json_text import read_exactly
from inference_store.query.conditions import compile_condition, list_labels, read_names, test_flags
from inference_store.query.cql2 import parse_json, to_text
from inference_store.query.cql2.tree import Node
from inference_store.query.deadline import HIGHEST, OutOfTime, ScanRange
from inference_store.query.filters import certain, from_conditions
from inference_store.query.filters.certain import FLAGS
from inference_store.query.filters.names import KnownKeys, find_known_keys, names_in
from inference_store.query.filters.typed import Predicate
from inference_store.query.preparation import warn_of_unknown_labels
from inference_store.query.unstored import Truths, evaluate

State = Literal["in_force", "ended", "released"]
ERASED: Final = "erased"
"""What replaces a value that an erasure removed, before its keyed hash."""


class Hold(Stored):
    """A legal hold: what it protects, why and until when, and who placed and released it.

    `model` None: every model, also those to come. `filter`: in the form of `filters.saved`.
    """

    id: UUID
    name: str
    reason: str
    model: Hidden[int | None]
    filter: str
    inference_ids: tuple[str, ...] | None
    until: datetime | None
    placed_by: str
    placed_at: datetime
    in_force_at: Hidden[datetime]
    released_by: str | None
    released_at: datetime | None
    release_reason: str | None
    revision: int

    @property
    def is_redacted(self) -> bool:
        """Check whether an erasure removed its filter."""
        return self.filter.startswith(ERASED)

    def find_state(self, now: datetime) -> State:
        """Return whether it protects anything: until it is released, or `until` has passed."""
        if self.released_at is not None:
            return "released"
        return "ended" if self.until is not None and self.until <= now else "in_force"


def is_in_force() -> ColumnElement[bool]:
    """Return the condition of the holds that protect something now."""
    here = hold.c
    return and_(here.released_at.is_(None), or_(here.until.is_(None), here.until > func.now()))


class HoldRevision(Stored):
    """One revision of a hold: what it was from then on, and who made the change."""

    revision: int
    change: Literal["placed", "changed", "released"]
    at: datetime
    actor: str
    document: Mapping[str, Any]


async def get_hold(
    connection: AsyncConnection, id: UUID, *, within: AccessScope, lock: bool = False
) -> Hold:
    """Return a hold, if its model is within the scope; a hold of every model needs the scope of
    all. Raises NotFound."""
    query = select(hold).where(hold.c.id == id, _match_scope(within))
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    if row is None:
        raise NotFound(f"There is no hold {id}.")
    return Hold.model_validate(row)


async def list_holds(
    connection: AsyncConnection,
    *,
    state: State | None = None,
    model: int | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: AccessScope = EVERYTHING,
) -> list[Hold]:
    """Return holds, the newest first; of a `model`: those that may protect something of it.

    `before`: (placed_at, id) of the last one of a page.
    """
    query = select(hold).where(_match_scope(within))
    conditions: Mapping[State | None, ColumnElement[bool]] = {
        "in_force": is_in_force(),
        "ended": and_(hold.c.released_at.is_(None), hold.c.until <= func.now()),
        "released": hold.c.released_at.is_not(None),
    }
    if state is not None:
        query = query.where(conditions[state])
    if model is not None:
        query = query.where(or_(hold.c.model.is_(None), hold.c.model == model))
    if before is not None:
        query = query.where(tuple_(hold.c.placed_at, hold.c.id) < before)
    query = query.order_by(hold.c.placed_at.desc(), hold.c.id.desc()).limit(limit)
    return [Hold.model_validate(row) for row in await connection.execute(query)]


async def list_revisions(
    connection: AsyncConnection, id: UUID, *, after: int = 0, limit: int = 1000
) -> list[HoldRevision]:
    """Return the revisions of a hold after `after`, the oldest first."""
    here = hold_change.c
    query = select(here.revision, here.change, here.at, here.actor, here.document)
    query = query.where(here.hold == id, here.revision > after).order_by(here.revision)
    rows = await connection.execute(query.limit(limit))
    return [HoldRevision(**row._mapping) for row in rows]


def _match_scope(scope: AccessScope) -> ColumnElement[bool]:
    return match_models(scope, hold.c.model)


# Builds the filter of a hold, and redacts the values of a subject in holds that mention it.
#
# A filter is resolved when the hold is placed, and never changes. A hold by ids is a filter too,
# so that it also protects what comes later under one of them.
#
# While an erasure knows its subject, it records the revisions that mention it (housekeeping.py).
# Their values are removed once the hold is over (released, or `until` has passed): until then its
# filter is needed. Who held something, when, and of which model stays, with keyed hashes of what
# was removed.


@dataclass(frozen=True, slots=True)
class HoldFilter:
    """The filter as it is stored, and warnings for whoever places the hold."""

    text: str
    warnings: tuple[str, ...]


async def build_filter(
    connection: AsyncConnection,
    model: int | None,
    tree: Node | None,
    *,
    inference_ids: Sequence[str] | None = None,
    source: str | None = None,
    types: Mapping[str, str] | None = None,
) -> HoldFilter:
    """Return the hold's filter, for a model or for all; of ids if it has no tree.

    `source`: the filter's text; `types`: by name, of keys that nothing has yet. Raises as
    `filters.saved.save` does; Invalid.
    """
    if tree is None:
        of_ids = from_conditions.of_ids(inference_ids or ())
        return HoldFilter(certain.save(of_ids, KnownKeys()).text, ())
    models = [model] if model is not None else await registrations.every_model(connection)
    keys = await find_known_keys(connection, models, names_in(tree))
    filter = certain.save(tree, keys, declared=types or {}, source=source)
    predicate = filter.checked.predicate
    # Refuse a filter on the project: a model may leave its project, and take held inferences
    # with it.
    if certain.names_project(predicate):
        fault = Fault("filter", "name the models, by `model_id`, instead of `project_id`")
        raise Invalid("A hold cannot depend on a project, which a model may leave.", faults=[fault])
    labels = await warn_of_unknown_labels(connection, models, list_labels(predicate, "="))
    return HoldFilter(filter.text, (*filter.checked.warnings, *labels))


def format_filter(text: str) -> str:
    """Return a stored filter as CQL2-Text; a filter that an erasure removed as it is stored."""
    if text.startswith(ERASED):
        return text
    return to_text(parse_json(read_exactly(text)["filter"]))


def list_declared_types(text: str) -> dict[str, str]:
    """Return the types of the keys that no inference had when the hold was placed or changed, by
    name: those that a stored filter counts no values of. Empty if an erasure removed the filter."""
    if text.startswith(ERASED):
        return {}
    keys = read_exactly(text)["keys"]
    return {name: kind for name, rows in keys.items() for kind in rows if int(rows[kind]) == 0}


HashText: TypeAlias = Callable[[str], str]
VALUES: Final = ("name", "reason", "filter", "inference_ids")
"""The members of a revision's document that may mention a subject."""
_HERE: Final = hold_change.c


async def has_recorded_value(connection: AsyncConnection, body: Mapping[str, Any]) -> bool:
    """Return whether the new version of a hold repeats a value of a recorded revision of it."""
    query = select(_HERE.document).where(_HERE.hold == UUID(body["id"]), _HERE.forget_when_over)
    values = {name: _normalise(name, value) for name, value in _select_values(body).items()}
    documents = (await connection.execute(query)).scalars()
    return any(
        values.get(name) == _normalise(name, value)
        for document in documents
        for name, value in _select_values(document).items()
    )


async def redact_recorded(connection: AsyncConnection, hash: HashText | None, *, limit: int) -> int:
    """Redact the recorded revisions whose hold is over, at most `limit`; return how many.
    Repeatable.

    `hash`: hashes a text; None: nobody has a key, and nothing of a value is left.
    """
    query = select(_HERE.hold, _HERE.revision, _HERE.change, _HERE.document)
    query = query.join(hold, hold.c.id == _HERE.hold)
    # it waits for the lock: a hold that was changed meanwhile may be in force again
    query = query.where(_HERE.forget_when_over, ~is_in_force()).with_for_update(of=hold)
    rows: Sequence[Any] = (await connection.execute(query.limit(limit))).all()
    for row in rows:
        redacted = {
            name: _redact_value(v, hash) for name, v in _select_values(row.document).items()
        }
        values = {"document": {**row.document, **redacted}, "forget_when_over": False}
        revision = hold_change.update().where(
            _HERE.hold == row.hold, _HERE.revision == row.revision
        )
        await connection.execute(revision.values(values))
        await _redact_hold(connection, row, redacted)
    return len(rows)


async def _redact_hold(connection: AsyncConnection, row: Any, redacted: dict[str, Any]) -> None:
    """Redact the hold itself, which repeats what its newest revisions say."""
    changed = hold.update().where(hold.c.id == row.hold)
    if row.change == "released":
        await connection.execute(changed.values(release_reason=redacted["reason"]))
        return
    newest = select(func.max(_HERE.revision)).where(
        _HERE.hold == row.hold, _HERE.change != "released"
    )
    await connection.execute(
        changed.where(newest.scalar_subquery() == row.revision).values(redacted)
    )


def _normalise(name: str, value: Any) -> Any:
    """Return a filter without the key types that were known when it was saved; another value as it
    is."""
    return format_filter(value) if name == "filter" else value


def _select_values(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in VALUES if document.get(name) is not None}


def _redact_value(value: Any, hash: HashText | None) -> Any:
    if isinstance(value, list):
        return [_redact_value(text, hash) for text in value]
    return ERASED if hash is None else f"{ERASED}:{hash(value)}"


# What holds protect.
#
# NULL protects. So does a doubt: if an inference has more metadata or predictions than are
# indexed, a filter about them may be FALSE although it would be TRUE of all of them. Whoever
# deletes takes the fence in an earlier statement (see erasure/pending_deletions.py), then
# reads the holds. A filter that cannot be evaluated stops deletion: HoldUnreadable names the hold.

INCOMPLETE_FLAGS: Final = (*FLAGS["predictions"], *FLAGS["metadata"])
"""Flags of an inference that is not indexed completely."""


async def list_in_force(
    connection: AsyncConnection, models: Iterable[int] | None = None
) -> list[Hold]:
    """Return the holds that may protect something of these models, or of any; the oldest first."""
    query = select(hold).where(is_in_force()).order_by(hold.c.placed_at, hold.c.id)
    if models is not None:
        query = query.where(or_(hold.c.model.is_(None), hold.c.model.in_(sorted(set(models)))))
    return [Hold.model_validate(row) for row in await connection.execute(query)]


async def build_held_condition(
    connection: AsyncConnection, where: ScanRange
) -> ColumnElement[bool]:
    """Return a condition that is TRUE for a row of `inference` that a hold protects, else FALSE.

    The rows lie in the range, so that few partitions are read. Raises HoldUnreadable.
    """
    holds = await list_in_force(connection, [where.model])
    conditions = [await build_hold_condition(connection, one, where) for one in holds]
    return or_(false(), *conditions)


async def build_hold_condition(
    connection: AsyncConnection, legal_hold: Hold, where: ScanRange
) -> ColumnElement[bool]:
    """Return the condition of one hold, whether or not it is in force. Raises HoldUnreadable."""
    try:
        predicate = await certain.load(connection, legal_hold.filter)
        is_false = compile_condition(predicate, await read_names(connection, predicate), when=False)
    except (StoreError, ValueError, KeyError, TypeError) as error:
        raise describe_unreadable(legal_hold, error) from error
    # for each row: a join would read all of its other side
    is_kept = case((is_false.holds(where, inference.c.uid), False), else_=True).is_(True)
    if not depends_on_index(predicate):
        return is_kept
    return or_(is_kept, test_flags(inference, INCOMPLETE_FLAGS))


async def find_holds(
    connection: AsyncConnection, holds: Sequence[Hold], model: int, uids: Sequence[UUID]
) -> dict[UUID, Hold]:
    """Return the stored inferences that one of the holds protects, each with the oldest such hold.

    Raises HoldUnreadable.
    """
    by_uid: dict[UUID, Hold] = {}
    for legal_hold in holds:
        rest = [uid for uid in uids if uid not in by_uid]
        if not rest or legal_hold.model not in (None, model):
            continue
        where = ScanRange(model, min(rest), UUID(int=min(max(rest).int + 1, HIGHEST.int)))
        is_kept = await build_hold_condition(connection, legal_hold, where)
        query = select(inference.c.uid).where(among(inference, model, rest), is_kept)
        try:
            by_uid |= dict.fromkeys((await connection.execute(query)).scalars(), legal_hold)
        except DBAPIError as error:
            if not is_rows_fault(error):
                raise
            raise describe_unreadable(legal_hold, error) from error
    return by_uid


def describe_unreadable(legal_hold: Hold, cause: BaseException) -> HoldUnreadable:
    """Return the error for a hold whose filter cannot be evaluated."""
    return HoldUnreadable(
        f"The filter of the hold {legal_hold.name!r} ({legal_hold.id}) cannot be evaluated, so"
        f" nothing is deleted that it may keep; change or release the hold. {cause}"
    )


async def judge(
    connection: AsyncConnection, holds: Sequence[Hold], items: Sequence[Indexable]
) -> list[dict[UUID, bool]]:
    """Return, for each of these inferences, which are not stored, whether each hold protects it,
    by the hold's id; without those whose filter cannot be evaluated."""
    predicates: dict[UUID, Predicate] = {}
    for legal_hold in holds:
        with suppress(StoreError, ValueError, KeyError, TypeError):
            predicates[legal_hold.id] = resolve_filter(legal_hold.filter)
    judged = []
    answers: Sequence[Truths | None] = [None] * len(items)
    with suppress(OutOfTime):
        answers = await evaluate(connection, items, list(predicates.values()))
    for item, truths in zip(items, answers, strict=True):
        incomplete = not set(INCOMPLETE_FLAGS).isdisjoint(item.all_flags)
        known = zip(predicates.items(), truths or (), strict=truths is not None)
        judged.append({
            id: truth is not False or (incomplete and depends_on_index(predicate))
            for (id, predicate), truth in known
        })  # fmt: skip
    return judged


@lru_cache(maxsize=256)
def resolve_filter(text: str) -> Predicate:
    """Return the predicate of a saved filter, by names alone."""
    return certain.resolve(text, {})


def depends_on_index(predicate: Predicate) -> bool:
    """Return whether it depends on metadata or predictions, of which the index may lack some."""
    return bool(certain.find_doubts(predicate))


# Places, changes and releases a hold: what the ledger's entries do to the tables.
#
# Each takes the fence exclusively, so that it is ordered against every claim of an eraser: what
# was claimed before is listed in the answer, and nothing that is claimed afterwards is held.
# Before the fence it waits for edits of metadata that are under way (see `block_placement`). All
# are repeatable.
#
# `body`: id, name, reason, model_id (None: every model), filter (as it is saved), inference_ids,
# until, revision; a release has id, reason and revision.

MOST_CLAIMS: Final = 10_000
"""How many claims are checked: far more than are under way at once."""


class Claim(Stored):
    """An inference that the hold protects from now on, and that an erasure had claimed before: some
    of it may be gone."""

    model: Hidden[int]
    uid: UUID
    scope: Literal["input", "response", "inference", "truth"]
    erasure: UUID
    claimed_at: datetime


_EDITS: Final = 7_302_021
_Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """The hold as it is now, and what had been claimed before. `has_more`: there were more claims
    than were checked."""

    hold: Hold
    claimed: list[Claim]
    has_more: bool


async def block_placement(connection: AsyncConnection) -> None:
    """Let no hold be placed until this transaction ends: an edit reads what is held, then writes.

    This is not the fence, which nobody holds during a call to S3, and an edit writes a blob.
    """
    await connection.execute(select(func.pg_advisory_xact_lock_shared(_EDITS)))


async def apply_placed(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Placement:
    """Place a hold; it takes precedence over everything that is not claimed yet."""
    await _lock(connection)
    values = await _build_values(connection, body)
    values |= {"placed_by": actor, "placed_at": at, "revision": body["revision"]}
    values |= {"in_force_at": func.clock_timestamp()}
    await connection.execute(insert(hold).values(values).on_conflict_do_nothing())
    current = await _record_revision(connection, body, "placed", at, actor)
    return Placement(current, *await find_claims(connection, current))


async def apply_changed(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Placement:
    """Replace a hold by another one under the same id."""
    await _lock(connection)
    values = await _build_values(connection, body) | {"in_force_at": func.clock_timestamp()}
    await _update_hold(connection, body, values)
    current = await _record_revision(connection, body, "changed", at, actor)
    return Placement(current, *await find_claims(connection, current))


async def apply_released(
    connection: AsyncConnection, body: _Document, at: datetime, actor: str
) -> Hold:
    """Release what a hold protected: pending erasures go on, and runs read everything again."""
    await _lock(connection)
    values = {"released_by": actor, "released_at": at, "release_reason": body["reason"]}
    await _update_hold(connection, body, values)
    return await _record_revision(connection, body, "released", at, actor)


async def find_claims(
    connection: AsyncConnection, hold: Hold, *, limit: int = MOST_CLAIMS
) -> tuple[list[Claim], bool]:
    """Return the claims that the hold came too late for, the oldest first, and whether there may be
    more than were checked.

    If the filter cannot be evaluated, return every claim that it may be about. Call it in the
    fence, as the hold is placed.
    """
    here = erasing.c
    query = select(here.model, here.uid, here.scope, here.erasure, here.claimed_at)
    query = query.where(here.claimed_at.is_not(None)).order_by(here.claimed_at, here.uid)
    if hold.model is not None:
        query = query.where(here.model == hold.model)
    rows = await connection.execute(query.limit(limit + 1))
    claims = [Claim.model_validate(row) for row in rows]
    has_more = len(claims) > limit
    claims = claims[:limit]
    held: set[tuple[int, UUID]] = set()
    for model, uids in by_model((claim.model, claim.uid) for claim in claims):
        held_uids: Collection[UUID] = uids
        with suppress(HoldUnreadable):
            async with connection.begin_nested():
                held_uids = await find_holds(connection, [hold], model, uids)
        held |= {(model, uid) for uid in held_uids}
    return [claim for claim in claims if (claim.model, claim.uid) in held], has_more


async def _lock(connection: AsyncConnection) -> None:
    await connection.execute(select(func.pg_advisory_xact_lock(_EDITS)))
    await fence_exclusive(connection)


async def _build_values(connection: AsyncConnection, body: _Document) -> dict[str, Any]:
    model_id, until = body["model_id"], body["until"]
    model = None if model_id is None else await model_numbers.reserve(connection, model_id)
    return {
        "id": UUID(body["id"]),
        "name": body["name"],
        "reason": body["reason"],
        "model": model,
        "filter": body["filter"],
        "inference_ids": body["inference_ids"],
        "until": None if until is None else datetime.fromisoformat(until),
    }


async def _update_hold(
    connection: AsyncConnection, body: _Document, values: dict[str, Any]
) -> None:
    """Update a hold, but only to a later revision: an entry that is applied again undoes nothing.
    What it protected may go now, so runs read everything again."""
    here = hold.c
    changed = hold.update().where(here.id == UUID(body["id"]), here.revision < body["revision"])
    changed = changed.values(values | {"revision": body["revision"], "taken_up": 0})
    await connection.execute(changed)
    await watermarks.delete_watermarks(connection)


async def _record_revision(
    connection: AsyncConnection,
    body: _Document,
    change: Literal["placed", "changed", "released"],
    at: datetime,
    actor: str,
) -> Hold:
    """Record a revision, and return the hold as it is now."""
    row = {"hold": UUID(body["id"]), "revision": body["revision"], "change": change}
    row |= {"at": at, "actor": actor, "document": dict(body)}
    row["forget_when_over"] = change == "changed" and await has_recorded_value(connection, body)
    await connection.execute(insert(hold_change).values(row).on_conflict_do_nothing())
    query = select(hold).where(hold.c.id == UUID(body["id"]))
    return Hold.model_validate((await connection.execute(query)).one())
