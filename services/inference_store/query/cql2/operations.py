"""The operators, predicates and functions of CQL2 1.0, and its conformance classes: one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

_URI: Final = "http://www.opengis.net/spec/cql2/1.0/conf/"


@dataclass(frozen=True, slots=True)
class Conformance:
    """One class."""

    name: str
    title: str
    meaning: str
    kept: bool = True
    """Wholly; single operations of a class may be kept if it is not."""

    @property
    def uri(self) -> str:
        """Its name in the standard."""
        return _URI + self.name


# fmt: off
CONFORMANCE: Final[Mapping[str, Conformance]] = {entry.name: entry for entry in (
    Conformance("cql2-text", "CQL2 Text", "filters as text"),
    Conformance("cql2-json", "CQL2 JSON", "filters as JSON"),
    Conformance("basic-cql2", "Basic CQL2", "AND, OR, NOT, the six comparisons, IS NULL"),
    Conformance("advanced-comparison-operators", "Advanced Comparison Operators",
                "LIKE, BETWEEN, IN"),
    Conformance("case-insensitive-comparison", "Case-insensitive Comparison", "CASEI"),
    Conformance("accent-insensitive-comparison", "Accent-insensitive Comparison", "ACCENTI"),
    Conformance("basic-spatial-functions", "Basic Spatial Functions",
                "S_INTERSECTS with points and boxes"),
    Conformance("basic-spatial-functions-plus",
                "Basic Spatial Functions with additional Spatial Literals",
                "S_INTERSECTS with every geometry; all are supported but LINESTRING and "
                "MULTILINESTRING, beside a name", kept=False),
    Conformance("spatial-functions", "Spatial Functions",
                "eight spatial relations; S_WITHIN and S_DISJOINT are supported",
                kept=False),
    Conformance("temporal-functions", "Temporal Functions", "fifteen relations of times"),
    Conformance("array-functions", "Array Functions",
                "four relations of arrays; a name beside values that are written out is supported",
                kept=False),
    Conformance("property-property", "Property-Property Comparisons",
                "names and values on either side of a comparison"),
    Conformance("functions", "Functions",
                "the functions of this store: prediction, count_predictions, truth, count_truth, "
                "distance, sent"),
    Conformance("arithmetic", "Arithmetic Expressions",
                "+ - * / % div ^"),
)}
# fmt: on


KEYWORDS: Final = {
    word: word.upper()
    for word in ("or", "and", "not", "like", "between", "in", "is", "null", "true", "false", "div")
}


Kind: TypeAlias = Literal[
    "truth", "number", "text", "instant", "duration", "interval", "geometry", "array", "unknown"
]
"""The kind of a node by its form alone; a name's kind is unknown until the types are known."""
Takes: TypeAlias = (
    Literal["truth", "number", "text", "pattern", "scalar", "ordered"]
    | Literal["time", "geometry", "array", "list", "name", "any"]
)
Short: TypeAlias = tuple[str, tuple[Any, ...]]
"""An operation and its arguments, which are nodes or operations in turn."""
Means: TypeAlias = Callable[..., Short]


@dataclass(frozen=True, slots=True)
class Argument:
    """What an argument may be, in words, and its kinds; `unknown` is one too, but for a list."""

    words: str
    kinds: tuple[Kind, ...] = ()


# fmt: off
ARGUMENTS: Final[Mapping[Takes, Argument]] = MappingProxyType({
    "truth": Argument("a condition", ("truth",)),
    "number": Argument("a number", ("number",)),
    "text": Argument("a text", ("text",)),
    "pattern": Argument("a pattern: a text in single quotes, or CASEI or ACCENTI of one"),
    "scalar": Argument("one value", ("text", "number", "truth", "instant")),
    "ordered": Argument("a number, text or time", ("text", "number", "instant")),
    "time": Argument("a time: a name, DATE('…'), TIMESTAMP('…') or INTERVAL('…', '…')",
                     ("instant", "interval", "text")),
    "geometry": Argument("a geometry", ("geometry",)),
    "array": Argument("an array: a name, or values in brackets", ("array",)),
    "list": Argument("a list of one or more values"),
    "name": Argument("a name"),
    "any": Argument("a value", ("truth", "number", "text", "instant", "geometry")),
})
# fmt: on


_OR, _AND, _NOT, PREDICATE, SUM, _PRODUCT, _POWER, FACTOR = range(8)
"""How tightly a node binds, in the order of the grammar."""
LEFT: Final = frozenset({SUM, _PRODUCT})
"""Levels that associate to the left: `a - b - c` is `(a - b) - c`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation. `takes`: its arguments; the last one may be repeated, up to `most` in all."""

    name: str
    """Its name in CQL2-JSON and in the tree."""
    text: str
    """Its name in CQL2-Text."""
    takes: tuple[Takes, ...]
    gives: Kind = "truth"
    conformance: str = "functions"
    """The name of its class in CONFORMANCE."""
    least: int
    most: int | None
    tight: int | None = None
    """How tightly it binds; None: it is written as a call."""
    means: Means | None = None
    """The operations that it is short for, which are checked and compiled in its place."""
    about: str = ""
    """What a function of this store is, for the reference page."""
    is_supported: bool = True

    @property
    def own(self) -> bool:
        """Check whether it is a function of this store, not of the standard."""
        return self.conformance == "functions"

    def takes_at(self, index: int) -> Takes:
        """Return the type of the argument with this index."""
        return self.takes[min(index, len(self.takes) - 1)] if self.takes else "any"


def _of(conformance: str, names: str, *takes: Takes, text: str = "", **others: Any) -> list[Entry]:
    """Return operations that take and give the same. `text`: left out, each is in capitals."""
    sizes = {"least": len(takes), "most": len(takes), **others}
    return [
        Entry(name=name, text=text or name.upper(), takes=takes, conformance=conformance, **sizes)
        for name in names.split()
    ]


def _turned(op: str) -> Means:
    return lambda left, right: (op, (right, left))


def _own(name: str, about: str, *takes: Takes, least: int, **others: Any) -> list[Entry]:
    return _of("functions", name, *takes, text=name, about=about, least=least, **others)


_COMPARISON, _TIMES = "advanced-comparison-operators", "temporal-functions"
# fmt: off
OPERATIONS: Final[Mapping[str, Entry]] = {entry.name: entry for entries in (
    _of("basic-cql2", "and", "truth", least=2, most=None, tight=_AND),
    _of("basic-cql2", "or", "truth", least=2, most=None, tight=_OR),
    _of("basic-cql2", "not", "truth", tight=_NOT),
    _of("basic-cql2", "= <> < > <= >=", "scalar", "scalar", tight=PREDICATE),
    _of("basic-cql2", "isNull", "any", text="IS NULL", tight=PREDICATE),
    _of(_COMPARISON, "like", "text", "pattern", tight=PREDICATE),
    _of(_COMPARISON, "between", "ordered", "ordered", "ordered", tight=PREDICATE),
    _of(_COMPARISON, "in", "scalar", "list", tight=PREDICATE),
    _of("case-insensitive-comparison", "casei", "text", gives="text"),
    _of("accent-insensitive-comparison", "accenti", "text", gives="text"),
    _of("arithmetic", "+ -", "number", "number", gives="number", tight=SUM),
    _of("arithmetic", "* / % div", "number", "number", gives="number", tight=_PRODUCT),
    _of("arithmetic", "^", "number", "number", gives="number", tight=_POWER),
    _of("basic-spatial-functions", "s_intersects", "geometry", "geometry"),
    _of("spatial-functions", "s_within", "geometry", "geometry"),
    _of("spatial-functions", "s_disjoint", "geometry", "geometry",
        means=lambda *args: ("not", (("s_intersects", args),))),
    _of("spatial-functions", "s_contains s_crosses s_equals s_overlaps s_touches",
        "geometry", "geometry", is_supported=False),
    _of(_TIMES, "t_before t_contains t_equals t_finishes t_intersects t_meets t_overlaps t_starts",
        "time", "time"),
    *(_of(_TIMES, name, "time", "time", means=_turned(of)) for name, of in (
        ("t_after", "t_before"), ("t_during", "t_contains"), ("t_finishedBy", "t_finishes"),
        ("t_metBy", "t_meets"), ("t_overlappedBy", "t_overlaps"), ("t_startedBy", "t_starts"),
    )),
    _of(_TIMES, "t_disjoint", "time", "time",
        means=lambda a, b: ("or", (("t_before", (a, b)), ("t_before", (b, a))))),
    _of("array-functions", "a_containedBy a_contains a_equals a_overlaps", "array", "array"),
    _own("prediction", "whether one prediction satisfies the condition, or there is one",
         "truth", least=0),
    _own("count_predictions", "how many predictions satisfy the condition, or there are",
         "truth", least=0, gives="number"),
    _own("truth", "whether one item of ground truth satisfies the condition, or there is one",
         "truth", least=0),
    _own("count_truth", "how many items of ground truth satisfy the condition, or there are",
         "truth", least=0, gives="number"),
    _own("distance", "metres between the location and a point", "geometry", "geometry", least=2,
         gives="number"),
    _own("sent", "whether the metadata key was sent, even as JSON null", "name", least=1),
    _own("now", "the time of the query", least=0, gives="instant"),
    _own("duration", "an ISO 8601 duration, by which a time is moved", "text", least=1,
         gives="duration"),
) for entry in entries}
# fmt: on
_BY_LETTERS: Final = MappingProxyType({name.lower(): entry for name, entry in OPERATIONS.items()})


def entry_of(name: str) -> Entry | None:
    """Return the operation of this name, ignoring case; None for an unknown function."""
    return _BY_LETTERS.get(name.lower())
