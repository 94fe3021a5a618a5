"""Values of a subject go from the holds that mention it: names, reasons, filters and ids.

While an erasure knows its subject it notes the revisions that mention it. Their values are taken
once the hold is over (released, or `until` has passed): before, its filter is needed. Who held
something, when, and of which model stays, with keyed hashes of what was taken.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.audit_chain import mentions
from inference_store.index.tables import hold, hold_change

from .hold import ERASED, is_in_force
from .making import spelt

Hash: TypeAlias = Callable[[str], str]
Place: TypeAlias = tuple[UUID, int]
BEGINNING: Final[Place] = (UUID(int=0), 0)
_VALUES: Final = ("name", "reason", "filter", "inference_ids")
_HERE: Final = hold_change.c


async def note_mentions(
    connection: AsyncConnection, key: str, value: str, *, after: Place, limit: int
) -> tuple[int, Place | None]:
    """Note the revisions that mention a subject, of `limit` behind `after`; how many, and the last
    that was looked at. None: there are none left. Repeatable."""
    behind = tuple_(_HERE.hold, _HERE.revision) > tuple_(*after)
    query = select(_HERE.hold, _HERE.revision, _HERE.document).where(behind)
    query = query.order_by(_HERE.hold, _HERE.revision).limit(limit)
    rows = (await connection.execute(query)).all()
    noted = [row for row in rows if mentions(_values_of(row.document), key, value)]
    for row in noted:
        await connection.execute(_of(row).values(forget_when_over=True))
    return len(noted), (rows[-1].hold, rows[-1].revision) if rows else None


async def repeats_noted(connection: AsyncConnection, body: Mapping[str, Any]) -> bool:
    """Whether what is put in a hold's place repeats a value of a noted revision of it."""
    query = select(_HERE.document).where(_HERE.hold == UUID(body["id"]), _HERE.forget_when_over)
    said = {name: _compared(name, value) for name, value in _values_of(body).items()}
    noted = (await connection.execute(query)).scalars()
    return any(
        said.get(name) == _compared(name, value)
        for document in noted
        for name, value in _values_of(document).items()
    )


async def forget(connection: AsyncConnection, hash: Hash | None, *, limit: int) -> int:
    """Take the values of noted revisions whose hold is over; of how many. Repeatable.

    `hash`: of a text; None: nobody has a key, and nothing is left of a value."""
    query = select(_HERE.hold, _HERE.revision, _HERE.change, _HERE.document)
    query = query.join(hold, hold.c.id == _HERE.hold)
    # the lock is waited for: a hold that was changed meanwhile may be in force again
    query = query.where(_HERE.forget_when_over, ~is_in_force()).with_for_update(of=hold)
    rows: Sequence[Any] = (await connection.execute(query.limit(limit))).all()
    for row in rows:
        taken = {name: _erased(v, hash) for name, v in _values_of(row.document).items()}
        values = {"document": {**row.document, **taken}, "forget_when_over": False}
        await connection.execute(_of(row).values(values))
        await _forget_in_hold(connection, row, taken)
    return len(rows)


async def _forget_in_hold(connection: AsyncConnection, row: Any, taken: dict[str, Any]) -> None:
    """The hold as it is says what its newest revisions said."""
    changed = hold.update().where(hold.c.id == row.hold)
    if row.change == "released":
        await connection.execute(changed.values(release_reason=taken["reason"]))
        return
    newest = select(func.max(_HERE.revision)).where(
        _HERE.hold == row.hold, _HERE.change != "released"
    )
    await connection.execute(changed.where(newest.scalar_subquery() == row.revision).values(taken))


def _compared(name: str, value: Any) -> Any:
    """A filter without what was known of its keys when it was saved."""
    return spelt(value) if name == "filter" else value


def _values_of(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in _VALUES if document.get(name) is not None}


def _erased(value: Any, hash: Hash | None) -> Any:
    if isinstance(value, list):
        return [_erased(each, hash) for each in value]
    return ERASED if hash is None else f"{ERASED}:{hash(value)}"


def _of(row: Any) -> Any:
    return hold_change.update().where(_HERE.hold == row.hold, _HERE.revision == row.revision)
