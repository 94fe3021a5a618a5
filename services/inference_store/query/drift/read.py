"""Chooses what is compared, and reads how often each value occurs among the inferences of a window,
of which a random sample is enough."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, any_, case, func, null, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Invalid
from inference_store.query.aggregates.aggregation import TypedName
from inference_store.query.aggregates.bins import value_of
from inference_store.query.aggregates.collector import Collector
from inference_store.query.aggregates.operands import LABEL, Operand, find_names, resolve
from inference_store.query.aggregates.statement import Statement
from inference_store.query.conditions.condition import Condition
from inference_store.query.cql2.tree import Named, Node, Operation, Scalar
from inference_store.query.cql2.write import to_text
from inference_store.query.deadline import Deadline, ScanRange, bind_many
from inference_store.query.filters.names import METADATA, known_key
from inference_store.query.filters.typed import Kind
from inference_store.query.order import AtRandom
from inference_store.query.pages import find_sorted
from inference_store.query.plan import Query
from inference_store.query.preparation import UnknownKeys
from inference_store.query.properties import PROPERTIES
from inference_store.query.search import count

from .report import Feature, Sampled

MOST_KEYS: Final = 50
_MOST_VALUES: Final = 20_000
"""Of predictions: of more, numbers that are nearly equal are counted together."""
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
        here = [uid for uid in self.all if scan_range.lo <= uid < scan_range.hi]
        return select(func.unnest(bind_many(here, UUID_TYPE(as_uuid=True))).column_valued("uid"))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002
        return uid == any_(bind_many(self.all, UUID_TYPE(as_uuid=True)))


async def read_window(  # noqa: PLR0917
    connection: AsyncConnection,
    model: Registration,
    query: Query,
    node: Node | None,
    features: Sequence[Feature],
    deadline: Deadline,
    *,
    most: int,
) -> Sampled:
    """Read how often each value occurs in a window, or in a random sample of `most` of it; `node`:
    its filter. Raises OutOfTime."""
    hits = await find_sorted(connection, query, AtRandom(seed=0), limit=most + 1, deadline=deadline)
    uids = tuple(sorted(hit.uid for hit in hits[:most]))
    inferences = len(hits)
    if inferences > most:
        inferences = await count(connection, query, deadline=deadline)
    window = Sampled(inferences, len(uids), node)
    if not uids:
        return window
    here = query.scan_range.clip(uids[0], UUID(int=uids[-1].int + 1))
    listed = replace(query, scan_range=here, conditions=(_Listed(uids),), size=1, wanted=None)
    collector = Collector(connection, {model.model: model}, listed, deadline)
    boxes = await _count_values(collector, _PREDICTIONS)
    number, squares = sum(n * k for n, k in boxes.items()), sum(n * n * k for n, k in boxes.items())
    window = replace(window, weight=float(number / squares) if squares else 1.0)
    for feature in features:
        if feature.operand is None or feature.missing_of is not None:
            continue
        is_rough = feature.operand.source == "prediction" and number > _MOST_VALUES
        values = await _count_values(collector, feature.operand, is_rough=is_rough)
        window.counts[feature.name] = values
    return window


_PREDICTIONS: Final = Operand("inference", "prediction_count", "number", stored="whole")


async def _count_values(
    collector: Collector, operand: Operand, *, is_rough: bool = False
) -> Counter[Any]:
    statement = Statement(leads=operand, counts="sketch" if is_rough else "value")
    values = (await collector.count(statement)).get((), Counter[Any]())
    if not is_rough:
        return values
    return Counter({value_of(number): many for number, many in values.items()})
