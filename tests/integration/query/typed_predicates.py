"""Typed predicates of every sort, close to the values of the rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from inference_store.query.filters.relations import relate_sets, some_of_kinds
from inference_store.query.filters.typed import (
    And,
    Applied,
    Area,
    Column,
    Compared,
    Constant,
    Counted,
    Distance,
    Kind,
    Located,
    Metadata,
    Missing,
    Not,
    Or,
    Predicate,
    PredicateValue,
    Predicted,
    Property,
    Sent,
    Unknown,
    Value,
    kind_of,
)
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES
from tests.integration.query.typed_rows import (
    DEGREES,
    INSTANTS,
    KEYS,
    LABELS,
    LATITUDES,
    LONG,
    NUMBERS,
    SCORES,
    SEVERAL,
    SHORT,
)

OF_TRUTH: Mapping[str, Kind] = {"has_truth": "bool", "truth_label": "string"}
Draw = Callable[[st.SearchStrategy[Any]], Any]
_MICRO = timedelta(microseconds=1)
_NUMBERS = [*NUMBERS, *(Decimal(repr(score)) for score in SCORES), Decimal("0.30000000000000003")]
_NUMBERS += [Decimal(number) for number in (200, 480, 640, 641, 1500, "1.5", "1234.567", "20.25")]
_NUMBERS += [
    Decimal("0.1000000000000000055511151231257827021181583404541015625"),
    Decimal("1e999"),
    Decimal("-1e999"),
    Decimal("0.05"),
]
_TEXTS = st.one_of(
    st.sampled_from([*SHORT, *LABELS, "ab", "ff", "boom", "a.", "b.", "id-3...", "1", "out"]),
    st.sampled_from(LONG),
    st.builds(lambda text, cut: text[:cut], st.sampled_from(LONG), st.integers(440, 520)),
)
_PATTERNS = st.one_of(
    _TEXTS.map(lambda text: text + "%"),
    st.sampled_from(["%", "%%", "", "_", "a_c", "a\\_c", "100\\%", "a\\\\c", "%b%", "a%b", "É%"]),
    st.builds(lambda text, cut: text[:cut] + "%", st.sampled_from(LONG), st.integers(0, 520)),
    st.sampled_from(LONG).map(lambda text: "_" + text[1:] + "%"),
)
_INSTANTS: st.SearchStrategy[datetime] = st.one_of(
    st.sampled_from(INSTANTS),
    st.sampled_from(INSTANTS).map(lambda at: at + _MICRO),
    st.sampled_from([datetime.min, datetime.max]).map(  # noqa: DTZ901
        lambda at: at.replace(tzinfo=INSTANTS[0].tzinfo)
    ),
)
CONSTANTS: Mapping[Kind, st.SearchStrategy[Constant]] = {
    "number": st.sampled_from(_NUMBERS).map(lambda value: Constant("number", value)),
    "string": _TEXTS.map(lambda value: Constant("string", value)),
    "bool": st.booleans().map(lambda value: Constant("bool", value)),
    "timestamp": _INSTANTS.map(lambda value: Constant("timestamp", value)),
}
KINDS: tuple[Kind, ...] = ("number", "string", "bool", "timestamp")
_EXPONENTS = st.sampled_from(
    ["0", "-0", "2", "0.5", "-1", "-2.5", "17", "1e-301", "1e9", "3.0"]
).map(lambda text: Constant("number", Decimal(text)))
_ORDERS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
_COUNTED = st.sampled_from([Decimal(text) for text in ("0", "1", "2", "0.5")]).map(
    lambda value: Constant("number", value)
)


@dataclass(frozen=True)
class PredicateMaker:
    """Draws predicates over keys with these integers; `inside`: of one prediction."""

    keys: Mapping[str, int]
    draw: Draw
    inside: bool = False
    twice: int = 0
    """The number of enclosing conditions that are values."""

    def predicate(self, depth: int) -> Predicate:
        shape = self.draw(st.integers(0, 9)) if depth else 0
        if shape <= 3:
            return self._leaf()
        parts = tuple(self.predicate(depth - 1) for _ in range(self.draw(st.integers(1, 3))))
        match shape:
            case 4 | 5:
                return And(parts)
            case 6 | 7:
                return Or(parts)
            case 8:
                return Not(parts[0])
            case _:
                return Unknown(parts[0])

    def _leaf(self) -> Predicate:
        methods = ["_compared", "_compared", "_compared", "_between", "_among", "_like", "_missing"]
        if not self.inside:
            methods += ["_outside", "_sent", "_predicted", "_predicted", "_located", "_array"]
            methods += ["_of_several_kinds", "_equals", "_first"]
        predicate: Predicate = getattr(self, self.draw(st.sampled_from(methods)))()
        return predicate

    def _compared(self) -> Predicate:
        kind = self._kind()
        left = self._value(kind)
        right = self._value(kind) if self.draw(st.integers(0, 3)) == 0 else self._near(left)
        return Compared(self.draw(_ORDERS), self._any_way(left, right))

    def _any_way(self, left: Value, right: Value) -> tuple[Value, Value]:
        return (right, left) if self.draw(st.integers(0, 4)) == 0 else (left, right)

    def _near(self, value: Value) -> Constant:
        match value:
            case Property("received_at" | "uid") | Constant():
                pass
            case Counted():
                return self._constant_of(_COUNTED)
            case Distance():
                metres = st.sampled_from(["0", "1e-9", "55597", "111195.08", "3e6", "-1", "2.1e7"])
                return Constant("number", Decimal(self.draw(metres)))
        return self._constant(kind_of(value))

    def _equals(self) -> Predicate:
        """Draw equalities joined by OR: one list in SQL."""
        value = self._value(kind := self._kind())
        return Or(tuple(Compared("=", (value, self._constant(kind))) for _ in range(3)))

    def _first(self) -> Predicate:
        """Draw a condition on the label and the score of the first prediction: one list in SQL."""
        label = Constant("string", self.draw(st.sampled_from([*LABELS, "nobody"])))
        labelled = Compared("=", (Property("top_label", "string"), label))
        score, low = Property("top_score", "number"), self._constant("number")
        scored = Compared(self.draw(_ORDERS), (score, low))
        between = Compared("between", (score, low, self._constant("number")))
        return And((self.draw(st.sampled_from([scored, between])), labelled))

    def _between(self) -> Predicate:
        kind = self._kind()
        low, high = (
            self._value(kind) if self.draw(st.integers(0, 3)) == 0 else self._constant(kind)
            for _ in range(2)
        )
        return Compared("between", (self._value(kind), low, high))

    def _among(self) -> Predicate:
        kind = self._kind()
        items = tuple(self._constant(kind) for _ in range(self.draw(st.integers(1, 4))))
        return Compared("in", (self._value(kind), *items))

    def _of_several_kinds(self) -> Predicate:
        name = self._name()
        kinds = self.draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=3, unique=True))
        lists = {kind: (self._constant(kind), self._constant(kind)) for kind in kinds}
        predicate = some_of_kinds(
            [
                Compared("in", (self._metadata(k, name), *constants))
                for k, constants in lists.items()
            ]
        )
        return Not(predicate) if self.draw(st.booleans()) else predicate

    def _like(self) -> Predicate:
        return Compared("like", (self._value("string"), Constant("string", self.draw(_PATTERNS))))

    def _missing(self) -> Predicate:
        return Missing(self._value(self._kind()))

    def lacking(self, most: int) -> Predicate:
        """Draw a condition that at most `most` keys are missing or were not sent."""
        names = [self._name() for _ in range(self.draw(st.integers(1, most)))]
        missing = [Missing(self._metadata("string", name)) for name in names]
        unsent = [Not(Sent(name, self.keys.get(name), name in SEVERAL)) for name in names]
        return And(
            tuple(
                self.draw(st.sampled_from(choices)) for choices in zip(missing, unsent, strict=True)
            )
        )

    def several(self, most: int) -> Predicate:
        """Draw comparisons that each have a list of their own, mostly a long one."""
        kinds: tuple[Kind, ...] = ("number", "string", "number")
        sides = [self._metadata(kind, name) for kind, name in zip(kinds, "nsk", strict=True)]
        return And(
            tuple(
                Compared(self.draw(st.sampled_from(["<>", ">", "<"])), (side, self._near(side)))
                for side in (*sides, *sides[:most])
            )
        )

    def _outside(self) -> Predicate:
        kind = self._kind()
        items = tuple(self._constant(kind) for _ in range(self.draw(st.integers(0, 3))))
        return Compared("outside", (self._value(kind), *items))

    def _sent(self) -> Predicate:
        name = self._name()
        return Sent(name, self.keys.get(name), name in SEVERAL)

    def _predicted(self) -> Predicate:
        return Predicted(self._condition())

    def _condition(self) -> Predicate | None:
        if self.draw(st.integers(0, 7)) == 0:
            return None
        inside = replace(self, inside=True)
        rest = inside.predicate(2)
        if self.draw(st.booleans()):
            return rest
        label = self.draw(st.sampled_from([*LABELS, "nobody"]))
        labelled = Compared("=", (Column("label", "string"), Constant("string", label)))
        return labelled if self.draw(st.booleans()) else And((labelled, rest))

    def _located(self) -> Predicate:
        relation = self.draw(st.sampled_from(["intersects", "within"]))
        areas = tuple(self._area() for _ in range(self.draw(st.integers(0, 2))))
        count = self.draw(st.integers(0 if areas else 1, 2))
        return Located(relation, areas, tuple(self._point() for _ in range(count)))

    def _point(self) -> tuple[Decimal, Decimal]:
        return self.draw(st.sampled_from(DEGREES)), self.draw(st.sampled_from(LATITUDES))

    def _area(self) -> Area:
        if self.draw(st.booleans()):
            (west, south), (east, north) = self._point(), self._point()
            ring = ((west, south), (east, south), (east, north), (west, north), (west, south))
            return Area(ring)
        return Area(self._ring(), tuple(self._ring() for _ in range(self.draw(st.integers(0, 1)))))

    def _ring(self) -> tuple[tuple[Decimal, Decimal], ...]:
        corners = [self._point() for _ in range(self.draw(st.integers(3, 5)))]
        return (*corners, corners[0])

    def _array(self) -> Predicate:
        kind: Kind = self.draw(st.sampled_from(["string", "number", "bool"]))
        of = self._metadata(kind, self.draw(st.sampled_from(["tags[]", "deep.list[]", "never"])))
        relation = self.draw(st.sampled_from(["equals", "contains", "containedBy", "overlaps"]))
        some = st.sampled_from(["a", "b", "é", "1"]) if kind == "string" else None
        few = st.sampled_from([Decimal(1), Decimal(2)]) if kind == "number" else st.booleans()
        items = [
            Constant(kind, self.draw(some if some is not None else few))
            for _ in range(self.draw(st.integers(0, 3)))
        ]
        if kind == "string" and self.draw(st.integers(0, 3)) == 0:
            return relate_sets(relation, {Property("inference_ids", "string"): tuple(items)})
        return relate_sets(relation, {of: tuple(items)})

    def _upto(self, most: int) -> int:
        return int(self.draw(st.integers(0, most)))

    def _kind(self) -> Kind:
        kinds: tuple[Kind, ...] = ("number", "string", "number", "string", "bool")
        kinds = kinds[: 4 if self.twice == 2 else 5] if self.inside else KINDS
        kind: Kind = self.draw(st.sampled_from(kinds))
        return kind

    def _constant(self, kind: Kind) -> Constant:
        return self._constant_of(CONSTANTS[kind])

    def _constant_of(self, some: st.SearchStrategy[Constant]) -> Constant:
        constant: Constant = self.draw(some)
        return constant

    def _value(self, kind: Kind, depth: int = 2) -> Value:
        shape = self.draw(st.integers(0, 9))
        if depth and kind == "number" and shape <= 2:
            return self._calculated(depth)
        if depth and kind == "string" and shape <= 2:
            how = self.draw(st.sampled_from(["casei", "accenti"]))
            return Applied(how, (self._value("string", depth - 1),))
        if kind == "bool" and shape <= 2 and self.twice < 2:
            return self._truthful()
        if shape == 3 and depth < 2:
            return self._constant(kind)
        return self._column(kind) if self.inside else self._of_inference(kind)

    def _truthful(self) -> Value:
        within = replace(self, twice=self.twice + 1)
        return PredicateValue(within._compared() if self.twice else within.predicate(1))

    def _column(self, kind: Kind) -> Value:
        if kind == "bool":
            return self._truthful()
        names = [name for name, entry in PREDICTION_COLUMNS.items() if entry.kind == kind]
        often = ["score"] * 6 if kind == "number" else ["label"] * 4
        return Column(self.draw(st.sampled_from([*often, *names])), kind)

    def _of_inference(self, kind: Kind) -> Value:
        shape = self.draw(st.integers(0, 9))
        if kind == "number" and shape == 0:
            return Counted(self._condition())
        if kind == "number" and shape == 1:
            return Distance(*self._point())
        if shape <= 4:
            # of truth, every comparison is tried where the constants are few
            known = (entry for entry in PROPERTIES.values() if entry.name not in OF_TRUTH)
            names = [entry.name for entry in known if entry.kind == kind]
            return Property(self.draw(st.sampled_from(names)), kind)
        return self._metadata(kind, self._name())

    def _metadata(self, kind: Kind, name: str) -> Metadata:
        return Metadata(name, self.keys.get(name), kind, name in SEVERAL)

    def _name(self) -> str:
        return str(self.draw(st.sampled_from([*KEYS, "never"])))

    def _calculated(self, depth: int) -> Value:
        op = self.draw(st.sampled_from(["+", "-", "*", "/", "%", "div", "^", "power"]))
        left = self._value("number", depth - 1)
        if op == "power" and self.draw(st.booleans()):
            return Applied(op, (left, self._constant_of(_EXPONENTS)))
        if op == "^":
            left = left if not isinstance(left, Applied) else self._constant("number")
            exponent = Constant("number", Decimal(self.draw(st.integers(1, 3))))  # `^ 0` is a power
            return Applied("^", (left, exponent))
        return Applied(op, (left, self._value("number", depth - 1)))
