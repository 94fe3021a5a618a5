"""Finds a model, and its inferences by an id that a client knows, or by `uid:<uuid>`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    CompoundSelect,
    DateTime,
    any_,
    bindparam,
    func,
    literal,
    select,
    union,
    union_all,
)
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.index.database import NONE, Settings, hold, settings_of
from inference_store.index.distribution import is_distributed_cached
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.registrations import (
    MOST_REACHES,
    Registration,
    find,
    get,
    registration_of,
    selected,
)
from inference_store.index.tables import (
    erasing,
    inference,
    inference_alias,
    partition_span,
    registration,
)
from inference_store.inference.errors import Invalid, NotFound
from inference_store.inference.events import uid_floor

from .deadline import (
    GROUP,
    HIGHEST,
    LOWEST,
    Deadline,
    Range,
    ScanRange,
    cut_range,
    fetch,
    find_ranges,
    has_marks,
    span_around,
    split_unbroken,
)
from .read import Inference, read


@dataclass(frozen=True, slots=True)
class Extent:
    """The spans of a model's inferences, as they were when a request began."""

    spans: Sequence[Range]
    """The open spans, the newest first."""
    has_marks: bool
    """Whether any of its inferences is being erased."""


async def model_with_extent(
    connection: AsyncConnection, model_id: str, *, within: AccessScope = EVERYTHING
) -> tuple[Registration, Extent]:
    """Return a model's registration, and its extent at the same instant.

    Raises NotFound as `get` does.
    """
    if await is_distributed_cached(connection):  # Citus cannot join these tables in one statement
        model = await get(connection, model_id, within=within)
        marks = await has_marks(connection, [model.model])
        return model, Extent(await find_ranges(connection), marks)
    row = await find(connection, _build_statement(within), model_id)
    bounds = zip(row["since"], row["until"], strict=True)
    spans = [(uid_floor(lo), uid_floor(hi)) for lo, hi in bounds]
    return registration_of(row), Extent(spans, row["has_marks"])


@lru_cache(MOST_REACHES)
def _build_statement(within: AccessScope) -> PreparedStatement:
    here = partition_span.c
    bounds = (
        func.array(
            select(bound).where(here.state == "open").order_by(here.lo.desc()).scalar_subquery(),
            type_=ARRAY(DateTime(timezone=True)),
        ).label(name)
        for name, bound in (("since", here.lo), ("until", here.hi))
    )
    mine = erasing.c.model == registration.c.model
    marks = select(erasing.c.uid).where(mine, erasing.c.scope == "inference").exists()
    return PreparedStatement(selected(within).add_columns(*bounds, marks.label("has_marks")))


UID_PREFIX = "uid:"
# The own ids of inferences, and their aliases.
_NAMED = ((inference, inference.c.inference_id), (inference_alias, inference_alias.c.alias))
# An id that a client repeats for ever is not counted beyond this.
MOST_COUNTED = 1_000
MOST_SECONDS = 10.0
"""A look-up by name takes no longer, however many partitions there are."""
# Planning takes most of a look-up's time. One plan for any id and all partitions, cached by the
# connection, saves it; but it takes four locks for each partition, so it is only for a few.
MOST_PLANNED_ONCE = 64
# With two tables only, more partitions at once need no more locks than a filter's.
_GROUP = 2 * GROUP
# Most ids have few inferences: an index finds each of them, whatever the planner estimates.
_BY_INDEX = {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_seqscan": "off"}
_PLANNED_ONCE = {**_BY_INDEX, "plan_cache_mode": "force_generic_plan"}
BY_ID: Final[Settings] = MappingProxyType(_PLANNED_ONCE)
"""The settings of a connection for look-ups of ids, unless it is of Citus: statements are planned
once."""


async def find_by_id(
    connection: AsyncConnection,
    model: int,
    inference_id: str,
    *,
    most: int = MOST_COUNTED,
    seconds: float = MOST_SECONDS,
    planned_once: int = MOST_PLANNED_ONCE,
    hidden: bool = False,
    spans: Sequence[Range] | None = None,
) -> Sequence[UUID]:
    """Return the uids of the inferences of that id, the newest first, up to `most`.

    `planned_once`: the most partitions that one cached plan may cover; `hidden`: also find
    inferences that are being erased; `spans`: those to search, newest first. Raises NotFound,
    Invalid for a malformed uid, OutOfTime.
    """
    uid = parse_uid(inference_id)
    if spans is None:
        spans = await find_ranges(connection, closed=hidden)
    if uid is not None:
        uids = await _find_by_uid(connection, model, uid, spans, hidden=hidden)
    else:
        deadline = Deadline.after(seconds)
        ways = spans, most, deadline, planned_once, hidden
        uids = await _find_by_name(connection, model, inference_id, *ways)
    if not uids:
        raise NotFound(f"The model has no inference {inference_id!r}.")
    return uids


def parse_uid(inference_id: str) -> UUID | None:
    """Return the uid that `uid:<uuid>` names; None for a client's id. Raises Invalid."""
    if not inference_id.startswith(UID_PREFIX):
        return None
    try:
        return UUID(inference_id.removeprefix(UID_PREFIX))
    except ValueError:
        raise Invalid(f"{inference_id!r} is not `uid:` and a UUID.") from None


async def _find_by_uid(
    connection: AsyncConnection,
    model: int,
    uid: UUID,
    spans: Sequence[Range],
    *,
    hidden: bool = False,
) -> Sequence[UUID]:
    """Return the uid itself if it exists in one of the spans.

    `hidden`: even if it is being erased.
    """
    if not any(lo <= uid < hi for lo, hi in spans):
        return []
    rows = await _select_uid(hidden).fetch(connection, {"model": model, "wanted": uid})
    return [row["uid"] for row in rows]


@cache
def _select_uid(hidden: bool) -> PreparedStatement:
    here = inference.c
    model, uid = bindparam("model", type_=INTEGER()), bindparam("wanted", type_=here.uid.type)
    rows = select(here.uid).where(here.model == model, here.uid == uid)
    return PreparedStatement(rows if hidden else rows.where(~is_marked(model, uid)))


async def _find_by_name(  # noqa: PLR0917
    connection: AsyncConnection,
    model: int,
    name: str,
    spans: Sequence[Range],
    most: int,
    deadline: Deadline,
    planned_once: int,
    hidden: bool,
) -> Sequence[UUID]:
    parts = cut_range(ScanRange(model, LOWEST, HIGHEST), spans, newest_first=True)
    # Citus has no plan for all models: the model decides on which node its rows are.
    once = len(parts) <= planned_once and not await is_distributed_cached(connection)
    if not once and settings_of(connection) == BY_ID:
        await hold(connection, NONE)  # also for the statements after this one
    settings = _PLANNED_ONCE if once else _BY_INDEX
    uids: list[UUID] = []
    for group in split_unbroken(parts, len(parts) if once else _GROUP):
        here = span_around(group)
        # by itself, or within a savepoint: its locks are released before the next group is searched
        rows = await fetch(
            connection,
            _select_named(hidden),
            deadline,
            what="look up an id",
            plain=once and settings_of(connection) == BY_ID,
            settings=settings,
            parameters={
                **{"model": model, "lo": here.lo, "hi": here.hi},
                **{"name": name, "most": most - len(uids)},
            },
        )
        uids += sorted({row["uid"] for row in rows}, reverse=True)
        if len(uids) >= most:
            break
    return uids[:most]


@cache
def _select_named(hidden: bool) -> PreparedStatement:
    """Select uids that have the name as their own id or as an alias; one with both comes twice."""
    lo, hi = (bindparam(name, type_=UUID_TYPE(as_uuid=True)) for name in ("lo", "hi"))
    model, most = (bindparam(name, type_=INTEGER()) for name in ("model", "most"))
    ways = []
    for table, column in _NAMED:
        uid = table.c.uid
        where = (table.c.model == model, uid >= lo, uid < hi)
        rows = select(uid).where(*where, column == bindparam("name", type_=TEXT()))
        if not hidden:
            rows = rows.where(~is_marked(model, uid))
        ways.append(select(rows.order_by(uid.desc()).limit(most).subquery().c.uid))
    return PreparedStatement(union_all(*ways))


def is_marked(model: ColumnElement[int], uid: ColumnElement[UUID]) -> ColumnElement[bool]:
    """Test whether the inference is being erased."""
    here = erasing.c
    of_it = (here.model == model, here.uid == uid, here.scope == "inference")
    return select(here.uid).where(*of_it).exists()


async def find_absent(
    connection: AsyncConnection,
    model: int,
    inference_ids: Sequence[str],
) -> list[str]:
    """Return the ids that no inference of the model has, in their order.

    An inference that is hidden, because another erasure deletes it, still has its id. Raises
    Invalid, OutOfTime.
    """
    deadline = Deadline.after(MOST_SECONDS)
    spans = await find_ranges(connection, closed=True)
    absent = dict.fromkeys(inference_ids)
    for inference_id in inference_ids:
        uid = parse_uid(inference_id)
        if uid is not None and await _find_by_uid(connection, model, uid, spans, hidden=True):
            absent.pop(inference_id, None)
    for part in cut_range(ScanRange(model, LOWEST, HIGHEST), spans, newest_first=True):
        names = [name for name in absent if not name.startswith(UID_PREFIX)]
        if not names:
            break
        rows = await fetch(connection, _select_some_named(part, names), deadline)
        for row in rows:
            absent.pop(row.name, None)
    return list(absent)


def _select_some_named(scan_range: ScanRange, names: Sequence[str]) -> CompoundSelect[Any]:
    listed = any_(literal(list(names), ARRAY(TEXT(collation="C"))))
    return union(
        *(
            select(column.label("name")).where(scan_range.of(table), column == listed)
            for table, column in _NAMED
        )
    )


async def read_visible(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    spans: Sequence[Range],
    *,
    include: Collection[str] = (),
) -> list[Inference]:
    """Return the inferences that lie in the spans and are not being erased, in order."""
    visible = await find_visible(connection, model, uids, spans)
    return await read(connection, model, [uid for uid in uids if uid in visible], include=include)


async def find_visible(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], spans: Sequence[Range]
) -> set[UUID]:
    """Return those of the uids whose inferences lie in the spans and are not being erased."""
    inside = [uid for uid in uids if any(lo <= uid < hi for lo, hi in spans)]
    if not inside:
        return set()
    rows = await _select_visible().fetch(connection, {"model": model, "uids": inside})
    return {row["uid"] for row in rows}


@cache
def _select_visible() -> PreparedStatement:
    here = inference.c
    model = bindparam("model", type_=INTEGER())
    uids = bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True)))
    there = (here.model == model, here.uid == any_(uids))
    return PreparedStatement(select(here.uid).where(*there, ~is_marked(model, here.uid)))
