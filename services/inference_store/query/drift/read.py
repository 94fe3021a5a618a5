"""Chooses what is compared, and reads how often each value occurs among the inferences of a window,
of which a random sample is enough."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, any_, case, func, null, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Invalid
from inference_store.query.aggregates.aggregation import TypedName
from inference_store.query.aggregates.bins import quotient
from inference_store.query.aggregates.collector import Collector, Groups, add_sums
from inference_store.query.aggregates.operands import LABEL, Operand, find_names, resolve
from inference_store.query.aggregates.statement import NUMBER, By, Column, Statement
from inference_store.query.conditions.condition import Condition
from inference_store.query.cql2.tree import Named, Node, Operation, Scalar
from inference_store.query.cql2.write import to_text
from inference_store.query.deadline import (
    HIGHEST,
    LOWEST,
    Deadline,
    ScanRange,
    bind_many,
    span_around,
    split_unbroken,
)
from inference_store.query.filters.names import METADATA, known_key
from inference_store.query.filters.typed import Kind
from inference_store.query.order import AtRandom
from inference_store.query.pages import find_sorted
from inference_store.query.plan import Query, find_pieces
from inference_store.query.preparation import UnknownKeys
from inference_store.query.properties import PROPERTIES
from inference_store.query.search import count

from .report import Feature, Sampled, choose_bounds

MOST_KEYS: Final = 50
_SOME: Final = 500
"""Inferences of each window that tell the bounds of bins."""
_SCATTERED: Final = 250
"""Of more different values among these, each is nearly alone: they name things."""
_BY_VALUE: Final[By] = "value"
_BY_INT: Final = attrgetter("int")
_PREDICTIONS: Final = Operand("inference", "prediction_count", "number", stored="whole")
_MOSTLY: Final = 0.9
_PIXELS: Final = 1e9
"""Boxes beyond that are none: their arithmetic could overflow."""
_COMPARED: Final[frozenset[Kind]] = frozenset({"number", "string", "bool"})
_EDGES: Final = ("xmin", "xmax", "ymin", "ymax")


@dataclass(frozen=True, slots=True)
class _OfBox(Operand):
    """What is computed of a box's edges."""

    def of(self, row: Any) -> Any:
        left, right, upper, lower = (row.c[edge] for edge in _EDGES)
        is_tame = and_(*(row.c[edge].between(-_PIXELS, _PIXELS) for edge in _EDGES))
        match self.name:
            case "center_x":
                value = (left + right) / 2
            case "center_y":
                value = (upper + lower) / 2
            case _:
                is_tame, value = and_(is_tame, lower - upper > 1 / _PIXELS), right - left
                value /= func.nullif(lower - upper, 0)
        return case((is_tame, value), else_=null())


_BOXES: Final = {
    f"prediction.{name}": _OfBox("prediction", name, "number", many=True, stored="double")
    for name in ("center_x", "center_y", "aspect")
}
_USUAL: Final = (
    *("ok", "model_ms", "prediction_count", "top_label", "label", "top_score"),
    *("prediction.score", "prediction.area", *_BOXES),
)


class Choice(NamedTuple):
    """What is compared."""

    features: Sequence[Feature]
    keys_left_out: int
    warnings: Sequence[str]


async def choose_features(
    connection: AsyncConnection,
    model: int,
    of: Sequence[TypedName] | None,
    unknown_keys: UnknownKeys,
) -> Choice:
    """Return what is named, or all that makes sense: of metadata keys the most used ones.

    Raises UnknownKey, ImpossibleComparison, Invalid.
    """
    names = [TypedName(name=name) for name in _USUAL] if of is None else of
    # the usual names are properties, whatever keys there are
    own = [_own(one) if of is None else one for one in names]
    checking = await find_names(connection, [model], own, unknown_keys)
    features: dict[str, Feature] = {}
    for n, one in enumerate(own):
        operand = _BOXES.get(one.name) or resolve(checking, one, f"of[{n}]", _COMPARED)
        _refuse_incomparable(operand, f"of[{n}]")
        made = _make_features(operand, names[n].name, is_asked=of is not None)
        features |= {feature.name: feature for feature in made}
    if of is not None:
        return Choice([*features.values()], 0, [*checking.warnings])
    keys = [key for key in await key_registry.keys(connection, model) if known_key(key).rows]
    operands = [operand for key in keys for operand in _read_key(key)]
    operands.sort(key=lambda pair: (-pair[0], pair[1].name))
    for _, operand in operands[:MOST_KEYS]:
        name = operand.name if operand.name not in PROPERTIES else METADATA + operand.name
        features |= {one.name: one for one in _make_features(operand, name, is_asked=False)}
    return Choice([*features.values()], len(keys) - len(operands[:MOST_KEYS]), ())


def _own(name: TypedName) -> TypedName:
    """Return the name of a property with its prefix."""
    return TypedName(name=f"inference.{name.name}") if name.name in PROPERTIES else name


def _read_key(key: key_registry.KeySeen) -> list[tuple[int, Operand]]:
    """Return how often a key was sent, and as what it is read: as what it is most often; texts that
    spell numbers as these. Nothing, if it is not compared."""
    known = known_key(key)
    rows = {kind: number for kind, number in known.rows.items() if number > 0}
    if known.many or not rows:
        return []
    sent: dict[Kind, int] = dict.fromkeys(rows, 0)
    for seen in key.types:
        if seen.kind in sent and seen.flag != key_registry.FROM_TEXT:
            sent[seen.kind] += seen.count
    kind = max(sent, key=sent.__getitem__)
    if kind == "string" and rows.get("number", 0) >= _MOSTLY * sent["string"]:
        kind = "number"
    if kind not in _COMPARED:
        return []
    return [(key.count, Operand("metadata", key.name, kind, stored="exact", key=key.key))]


def _refuse_incomparable(operand: Operand, path: str) -> None:
    if operand.source == "prediction" and operand.kind != "number":
        message = "of predictions numbers are compared, and their labels, as `label`"
        raise Invalid.of(path, message, ["label"])
    if operand.source == "metadata" and operand.many:
        raise Invalid.of(path, f"an inference may have several values of {operand.name!r}")
    if operand.kind not in _COMPARED:
        raise Invalid.of(path, f"{operand.name!r} is a time, which always moves on")


def _make_features(operand: Operand, name: str, *, is_asked: bool) -> list[Feature]:
    named = Named(name.removeprefix("inference."))
    lacking: Node = Operation("isNull", (named,))
    some: Node = Operation("not", (lacking,))
    if operand == LABEL:
        return [Feature(name, "labels", LABEL, is_asked=is_asked)]
    if operand.source == "prediction":
        some = Operation(">", (Named("prediction_count"), Scalar(Decimal(0))))
        return [Feature(name, "number", operand, some, is_asked=is_asked)]
    if operand.kind == "bool":
        is_true = (operand.source, operand.name) != ("inference", "ok")  # errors are counted
        some = named if is_true else Operation("not", (named,))
        how: Any = {"is_true": is_true, "is_asked": is_asked}
        made = Feature(to_text(some), "share", operand, some, **how)
    else:
        kind: Any = "number" if operand.kind == "number" else "category"
        made = Feature(name, kind, operand, some, is_asked=is_asked)
    if operand.source != "metadata":
        return [made]
    return [made, Feature(to_text(lacking), "share", operand, lacking, missing_of=made.name)]


@dataclass(frozen=True, slots=True)
class _Listed(Condition):
    """The inference is one of these, which are in order."""

    all: tuple[UUID, ...] = field(repr=False)
    kind: str = "listed"
    scans: int = 1

    def uids(self, scan_range: ScanRange) -> Any:
        # by their integers: to compare 10,000 as UUIDs takes longer than the statement
        ends = (
            bisect_left(self.all, one.int, key=_BY_INT) for one in (scan_range.lo, scan_range.hi)
        )
        here = self.all[slice(*ends)]
        return select(func.unnest(bind_many(here, UUID_TYPE(as_uuid=True))).column_valued("uid"))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002
        return uid == any_(bind_many(self.all, UUID_TYPE(as_uuid=True)))


class Window(NamedTuple):
    """A window to be read. `node`: its filter."""

    query: Query
    node: Node | None


async def read_windows(
    connection: AsyncConnection,
    model: Registration,
    windows: Sequence[Window],
    features: Sequence[Feature],
    deadline: Deadline,
    *,
    most: int,
) -> tuple[list[Sampled], Sequence[str]]:
    """Read how often each value occurs in both windows, or in a random sample of `most` of each;
    return also the features that have too many different values. Raises OutOfTime.

    Numbers are counted in bins, whose bounds some inferences of both windows tell.
    """
    query = await _join_partitions(connection, windows[0].query)
    reader = _Reader(connection, model, deadline)
    sampled = [await reader.take_sample(window, most) for window in windows]
    if not all(window.sampled for window in sampled):
        return sampled, ()
    some = [uid for window in sampled for uid in window.some]
    boxes = await reader.count(query, some, _PREDICTIONS, "value")
    number = sum(n * times for n, times in boxes.items())
    few = [u for window in sampled for u in window.some[: int(_SOME**2 / max(_SOME, number))]]
    scattered: list[str] = []
    for feature in (one for one in features if one.missing_of is None):
        operand, by = feature.operand, _BY_VALUE
        if operand.kind != "bool":
            uids = few if operand.source == "prediction" else some
            values = await reader.count(query, uids, operand, "value")
            if feature.kind != "number" and len(values) > _SCATTERED:
                scattered.append(feature.name)
                continue
            if feature.kind == "number" and values:
                by, shown = choose_bounds(values)
                for window in sampled:
                    window.bounds[feature.name] = shown
        await reader.read(sampled, query, feature, by)
    return sampled, scattered


async def _join_partitions(connection: AsyncConnection, query: Query) -> Query:
    """Return it over all time, with adjoining partitions as one: a statement has a part for each,
    which takes time to build, and lists of uids need no plan of their own."""
    whole = replace(query, scan_range=replace(query.scan_range, lo=LOWEST, hi=HIGHEST))
    runs = map(span_around, split_unbroken(await find_pieces(connection, whole)))
    return replace(whole, spans=[(run.lo, run.hi) for run in runs])


class _Reader:
    def __init__(
        self, connection: AsyncConnection, model: Registration, deadline: Deadline
    ) -> None:
        self._connection, self._model, self._deadline = connection, model, deadline

    async def take_sample(self, window: Window, most: int) -> Sampled:
        """Return the uids of a random sample."""
        how: Any = {"deadline": self._deadline}
        order = AtRandom(seed=0)
        hits = await find_sorted(self._connection, window.query, order, limit=most + 1, **how)
        inferences = len(hits)
        if inferences > most:
            inferences = await count(self._connection, window.query, **how)
        drawn = [hit.uid for hit in hits[:most]]
        uids = sorted(drawn, key=_BY_INT)
        sampled = Sampled(inferences, len(uids), window.node, uids, drawn[:_SOME])
        boxes = await self.count(window.query, uids, _PREDICTIONS, "value") if uids else {}
        squares = sum(n * n * times for n, times in boxes.items())
        number = sum(n * times for n, times in boxes.items())
        return replace(sampled, weight=float(number / squares) if squares else 1.0)

    async def read(
        self, sampled: Sequence[Sampled], query: Query, feature: Feature, by: By
    ) -> None:
        """Count the values of both windows; of numbers each bin counts as the mean of what both
        windows have there."""
        if by == "value":
            for window in sampled:
                counts = await self.count(query, window.uids, feature.operand, by)
                window.counts[feature.name] = counts
            return
        total = Column(feature.operand, "total")
        statement = Statement(leads=feature.operand, counts=by, columns=(NUMBER, total))
        found = [await self._collect(query, window.uids, statement) for window in sampled]
        bins: Groups = {}
        for window, of in zip(sampled, found, strict=True):
            whole: Groups = {}
            for key, sums in of.items():
                add_sums(bins, key, sums)
                add_sums(whole, (), sums)
            for sums in whole.values():
                window.means[feature.name] = float(quotient(sums[total], sums[NUMBER]))
        means = {key: quotient(sums[total], sums[NUMBER]) for key, sums in bins.items()}
        for window, of in zip(sampled, found, strict=True):
            window.counts[feature.name] = {means[key]: sums[NUMBER] for key, sums in of.items()}

    async def count(
        self, query: Query, uids: Sequence[UUID], operand: Operand, by: By
    ) -> Counter[Any]:
        found = await self._collect(query, uids, Statement(leads=operand, counts=by))
        return Counter({key: sums[NUMBER] for (key,), sums in found.items()})

    async def _collect(self, query: Query, uids: Sequence[UUID], statement: Statement) -> Groups:
        listed = tuple(sorted(uids, key=_BY_INT))
        here = replace(query.scan_range, lo=listed[0], hi=UUID(int=listed[-1].int + 1))
        of_uids = replace(query, scan_range=here, conditions=(_Listed(listed),), size=1)
        models = {self._model.model: self._model}
        return await Collector(self._connection, models, of_uids, self._deadline).collect(statement)
