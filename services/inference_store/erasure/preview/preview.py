"""What a policy would delete today: counted in the time there is, with the oldest as examples.

It looks at every model that the policy may apply to, the oldest time first, at what the chain with
this policy lets expire now. What is being erased already is not counted; what holds keep is counted
apart. Where time runs out the answer is `partial`, and its figures are what was seen until then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Subquery,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    not_,
    null,
    or_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, policies
from inference_store.erasure.policies import Chain, Of, RetentionPolicy, Scope
from inference_store.erasure.policies.losing import losing_columns
from inference_store.erasure.select import limits, selection
from inference_store.erasure.select.selection import UNDECIDED, Decided
from inference_store.index.registrations import Registration
from inference_store.index.tables import erasing, inference
from inference_store.inference.events import received_at_of, uid_floor
from inference_store.query.bounded import Deadline, OutOfTime, fetch
from inference_store.query.scan_range import ScanRange as Where
from inference_store.query.scan_range import find_pieces_of, range_of_time

from . import changed
from .changed import Changed

EXAMPLES = 20
_SCOPES: tuple[Scope, ...] = ("inference", "response", "input")
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Part:
    """So many inferences lose this part. `bytes` of those whose size is known."""

    count: int = 0
    bytes: int = 0
    unknown_sizes: int = 0
    """Of those that lose it; under a limit by bytes, of all inferences."""
    held: int = 0
    """More of them, which holds keep."""
    oldest: datetime | None = None
    newest: datetime | None = None

    def __add__(self, other: "Part") -> "Part":
        oldest = [each for each in (self.oldest, other.oldest) if each is not None]
        newest = [each for each in (self.newest, other.newest) if each is not None]
        return Part(
            self.count + other.count,
            self.bytes + other.bytes,
            self.unknown_sizes + other.unknown_sizes,
            self.held + other.held,
            min(oldest, default=None),
            max(newest, default=None),
        )


@dataclass(frozen=True, slots=True)
class Example:
    """One of the oldest that would lose a part; which rule says so, or which limit."""

    model_id: str
    uid: UUID
    inference_id: str
    received_at: datetime
    scope: Scope
    of: Of | None
    rule: int | None
    name: str | None


@dataclass(slots=True)
class WouldDelete:
    """What was found."""

    parts: dict[Scope, Part] = field(default_factory=lambda: {s: Part() for s in _SCOPES})
    fresh: int = 0
    """How many lose something that what is in force now would not take today."""
    examples: list[Example] = field(default_factory=list)
    cut: bool = False
    """The time was over before all was looked at."""
    unmeasured: int = 0
    """Inferences of an unknown size, whether they go or not, that a limit by bytes is over."""
    tightened: bool = False
    """The change makes a limit by bytes tighter that is over some of them."""
    waits: bool = False
    """Something goes that is not in these figures, once a change begins that waits still."""

    @property
    def partial(self) -> bool:
        """Whether it may be more than these figures say."""
        return self.cut or self.unmeasured > 0

    @property
    def harmless(self) -> bool:
        """Whether it takes nothing, as far as can be said, that would not go anyway."""
        return not (self.fresh or self.cut or self.tightened or self.waits)


async def would_delete(
    connection: AsyncConnection, of: Of, policy: RetentionPolicy | None, *, seconds: float
) -> WouldDelete:
    """Look for what this policy in the place of `of` would delete today."""
    now = await policies.now(connection)
    models = await changed.by_policy(connection, of, policy, now)
    return await _looked(connection, models, now, WouldDelete(), seconds)


async def would_delete_moved(
    connection: AsyncConnection, one: Registration, project_id: str | None, *, seconds: float
) -> WouldDelete:
    """Look for what would be deleted today if the model were in this project."""
    now = await policies.now(connection)
    models, waits = await changed.by_move(connection, one, project_id)
    return await _looked(connection, models, now, WouldDelete(waits=waits), seconds)


async def _looked(
    connection: AsyncConnection,
    models: Sequence[Changed],
    now: datetime,
    found: WouldDelete,
    seconds: float,
) -> WouldDelete:
    deadline = Deadline.after(seconds)
    try:
        for each in models:
            into = WouldDelete() if each.beside else found
            await _look(connection, each, now, deadline, into)
            found.waits = found.waits or (each.beside and not into.harmless)
    except OutOfTime:
        found.cut = True
    return found


async def _look(
    connection: AsyncConnection, one: Changed, now: datetime, deadline: Deadline, found: WouldDelete
) -> None:
    unmeasured = await limits.unmeasured(connection, one.model, one.after, deadline)
    found.unmeasured += unmeasured
    found.parts["inference"] += Part(unknown_sizes=unmeasured)
    found.tightened |= unmeasured > 0 and limits.is_tighter(one.after, one.before)
    rules = await selection.decided(connection, one.after)
    ruled = await selection.decided(connection, one.before)
    # as a run does: limits are of what no rule has taken
    when: Any = {"now": now, "deadline": deadline}
    below = await limits.beyond_after(rules, connection, one.model, one.after, **when)
    above = await limits.beyond_after(ruled, connection, one.model, one.before, **when)
    ends = [one.after.latest(now), None if below is None else received_at_of(below) + _SECOND]
    until = max((end for end in ends if end is not None), default=None)
    if until is None:
        return
    for piece in await find_pieces_of(
        connection, range_of_time(one.model, None, until), newest_first=False
    ):
        held = await holds.predicate(connection, one.model, lo=piece.lo, hi=piece.hi)
        rows = _rows(piece, rules, ruled, held)
        gone = {scope: _gone(one.after, rows.c.rule, rows, scope, now) for scope in _SCOPES}
        past = {scope: _gone(one.before, rows.c.before, rows, scope, now) for scope in _SCOPES}
        for parts, cut in ((gone, below), (past, above)):
            if cut is not None:
                parts["inference"] = or_(parts["inference"], rows.c.uid < cut)
        [counted] = await fetch(connection, _counted(rows, gone, past), deadline)
        # those under a limit by bytes are counted above
        unknown = {"inference_unknown_sizes": 0} if unmeasured else {}
        _add(found, counted._asdict() | unknown)
        if len(found.examples) < EXAMPLES:
            wanted = EXAMPLES - len(found.examples)
            for row in await fetch(connection, _examples(rows, gone, wanted), deadline):
                found.examples.append(_example(one, row._asdict()))


def _rows(
    piece: Where, after: Decided, before: Decided, held: ColumnElement[bool] | None
) -> Subquery:
    """What is stored there and not being erased, with the rule that decides about each."""
    here = inference.c
    mark = select(erasing.c.uid).where(
        erasing.c.model == here.model, erasing.c.uid == here.uid, erasing.c.scope == "inference"
    )
    query = select(
        *(here.uid, here.inference_id, here.received_at, here.stored_bytes, here.data_size),
        *(here.data_deleted_at, here.response_deleted_at, here.response_storage_key),
        after.rule(piece).label("rule"),
        before.rule(piece).label("before"),
        (false() if held is None else held).label("held"),
    )
    # OFFSET: a fence, so that what decides is asked once of each row
    return query.where(piece.of(inference), ~mark.exists()).offset(literal(0)).subquery()


def _gone(
    chain: Chain, rule: ColumnElement[int], rows: Subquery, scope: Scope, now: datetime
) -> ColumnElement[bool]:
    """Whether a row loses this part, by the chain whose deciding rule is in this column."""
    whens = []
    for number, each in enumerate(chain.rules):
        cutoff = each.cutoffs(now).of(scope)
        if cutoff is not None:
            whens.append((rule == number, rows.c.uid < uid_floor(cutoff)))
    gone = case(*whens, else_=false()) if whens else false()
    if scope == "input":
        return and_(gone, rows.c.data_deleted_at.is_(None))
    if scope == "response":
        there = rows.c.response_storage_key.is_not(None)
        return and_(gone, there, rows.c.response_deleted_at.is_(None))
    return and_(gone)


def _counted(
    rows: Subquery,
    gone: Mapping[Scope, ColumnElement[bool]],
    past: Mapping[Scope, ColumnElement[bool]],
) -> Select[Any]:
    sizes = {
        "inference": rows.c.stored_bytes,
        "input": rows.c.data_size,
        "response": cast(null(), BigInteger()),
    }
    columns: list[ColumnElement[Any]] = []
    free = not_(rows.c.held)
    for scope in _SCOPES:
        lost = _only(gone, scope)
        size, at = sizes[scope], rows.c.received_at
        losing = losing_columns(lost, rows.c.held, size, at)
        columns += [column.label(f"{scope}_{name}") for name, column in losing.items()]
    fresh = or_(*(and_(gone[scope], not_(past[scope])) for scope in _SCOPES))
    return select(*columns, func.count().filter(fresh, free).label("fresh")).select_from(rows)


def _only(gone: Mapping[Scope, ColumnElement[bool]], scope: Scope) -> ColumnElement[bool]:
    """What goes whole loses no part."""
    if scope == "inference":
        return gone[scope]
    return and_(gone[scope], not_(gone["inference"]))


def _add(found: WouldDelete, counted: Mapping[str, Any]) -> None:
    for scope in _SCOPES:
        names = ("count", "bytes", "unknown_sizes", "held", "oldest", "newest")
        values = {name: counted[f"{scope}_{name}"] for name in names}
        found.parts[scope] += Part(**values | {"bytes": int(values["bytes"])})
    found.fresh += counted["fresh"]


def _examples(
    rows: Subquery, gone: Mapping[Scope, ColumnElement[bool]], wanted: int
) -> Select[Any]:
    whens = [(gone[scope], literal(scope)) for scope in _SCOPES]
    query = select(
        *(rows.c.uid, rows.c.inference_id, rows.c.received_at, rows.c.rule),
        case(*whens, else_=literal("")).label("scope"),
    ).where(or_(*gone.values()), not_(rows.c.held))
    return query.order_by(rows.c.uid).limit(wanted)


def _example(one: Changed, row: Mapping[str, Any]) -> Example:
    by = None if row["rule"] == UNDECIDED else one.after.rules[row["rule"]]
    return Example(
        model_id=one.model_id,
        uid=row["uid"],
        inference_id=row["inference_id"],
        received_at=row["received_at"],
        scope=row["scope"],
        of=None if by is None else by.of,
        rule=None if by is None else by.number,
        name=None if by is None else by.rule.name,
    )
