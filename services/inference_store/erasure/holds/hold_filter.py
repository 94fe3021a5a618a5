"""Builds the filter of a hold, and redacts the values of a subject in holds that mention it.

A filter is resolved when the hold is placed, and never changes. A hold by ids is a filter too,
so that it also protects what comes later under one of them.

While an erasure knows its subject, it records the revisions that mention it. Their values are
removed once the hold is over (released, or `until` has passed): until then its filter is needed.
Who held something, when, and of which model stays, with keyed hashes of what was removed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import AccessScope
from inference_store.erasure.mentions import mentions
from inference_store.index import registrations
from inference_store.index.scope_filters import match_models
from inference_store.index.tables import hold, hold_change
from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.json_text import read_exactly
from inference_store.query.cql2 import parse_json, to_text
from inference_store.query.cql2.tree import Node
from inference_store.query.filters import from_conditions, saved
from inference_store.query.filters.certain import names_project
from inference_store.query.filters.names import KnownKeys, find_known_keys, names_in
from inference_store.query.preparation import list_labels, warn_of_unknown_labels

from .hold import ERASED, is_in_force


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldCriteria:
    """Exactly one of a filter and ids. `types`: by name, of keys that nothing has yet."""

    filter: Node | None = None
    filter_text: str | None = None
    inference_ids: Sequence[str] | None = None
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HoldFilter:
    """The filter as it is stored, and warnings for whoever places the hold."""

    text: str
    warnings: tuple[str, ...]


async def build_filter(
    connection: AsyncConnection, model: int | None, request: HoldCriteria
) -> HoldFilter:
    """Return the hold's filter, for a model or for all. Raises as `filters.saved.save` does;
    Invalid."""
    if request.filter is None:
        return HoldFilter(
            saved.save(from_conditions.of_ids(request.inference_ids or ()), KnownKeys()).text, ()
        )
    models = [model] if model is not None else await registrations.every_model(connection)
    keys = await find_known_keys(connection, models, names_in(request.filter))
    filter = saved.save(request.filter, keys, declared=request.types, source=request.filter_text)
    predicate = filter.checked.predicate
    # Refuse a filter on the project: a model may leave its project, and take held inferences
    # with it.
    if names_project(predicate):
        fault = Fault("filter", "name the models, by `model_id`, instead of `project_id`")
        raise Invalid("A hold cannot depend on a project, which a model may leave.", faults=[fault])
    labels = await warn_of_unknown_labels(connection, models, list_labels([predicate]))
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
Position: TypeAlias = tuple[UUID, int]
START: Final[Position] = (UUID(int=0), 0)
_VALUES: Final = ("name", "reason", "filter", "inference_ids")
_HERE: Final = hold_change.c


async def record_mentions(
    connection: AsyncConnection,
    subject: tuple[str, str],
    reach: AccessScope,
    *,
    after: Position,
    limit: int,
) -> tuple[int, Position | None]:
    """Record the revisions that mention a subject (its key and value), among the `limit` after
    `after` whose hold is in reach. Repeatable.

    Return how many, and the last one that was read; None if none is left.
    """
    is_after = tuple_(_HERE.hold, _HERE.revision) > tuple_(*after)
    query = select(_HERE.hold, _HERE.revision, _HERE.document).where(is_after)
    query = query.join(hold, hold.c.id == _HERE.hold).where(match_models(reach, hold.c.model))
    query = query.order_by(_HERE.hold, _HERE.revision).limit(limit)
    rows = (await connection.execute(query)).all()
    mentioning = [row for row in rows if mentions(_select_values(row.document), *subject)]
    for row in mentioning:
        await connection.execute(_update_revision(row).values(forget_when_over=True))
    return len(mentioning), (rows[-1].hold, rows[-1].revision) if rows else None


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
        await connection.execute(_update_revision(row).values(values))
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
    return {name: document[name] for name in _VALUES if document.get(name) is not None}


def _redact_value(value: Any, hash: HashText | None) -> Any:
    if isinstance(value, list):
        return [_redact_value(text, hash) for text in value]
    return ERASED if hash is None else f"{ERASED}:{hash(value)}"


def _update_revision(row: Any) -> Any:
    return hold_change.update().where(_HERE.hold == row.hold, _HERE.revision == row.revision)
