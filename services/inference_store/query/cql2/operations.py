"""The operators, predicates and functions of CQL2 1.0, and its conformance classes: one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

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
                "MULTILINESTRING", kept=False),
    Conformance("spatial-functions", "Spatial Functions",
                "eight spatial relations; S_WITHIN and S_DISJOINT are supported",
                kept=False),
    Conformance("temporal-functions", "Temporal Functions", "fifteen relations of times"),
    Conformance("array-functions", "Array Functions",
                "four relations of arrays, of names and of what is written out"),
    Conformance("property-property", "Property-Property Comparisons",
                "names and values on either side of a comparison"),
    Conformance("functions", "Functions",
                "the functions of this store: prediction, count_predictions, distance, sent"),
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
Takes: TypeAlias = Literal[
    "truth",
    "number",
    "text",
    "pattern",
    "scalar",
    "ordered",
    "time",
    "geometry",
    "array",
    "list",
    "name",
    "any",
]
Style: TypeAlias = Literal["infix", "words", "call"]


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


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation. `takes`: its arguments; the last one may be repeated, up to `most` in all."""

    name: str
    """Its name in CQL2-JSON and in the tree."""
    text: str
    """Its name in CQL2-Text."""
    style: Style
    takes: tuple[Takes, ...]
    gives: Kind
    conformance: str
    """The name of its class in CONFORMANCE."""
    least: int
    most: int | None
    is_supported: bool = True
    own: bool = False
    """Whether it is a function of this store, not of the standard."""

    def takes_at(self, index: int) -> Takes:
        """Return the type of the argument with this index."""
        return self.takes[min(index, len(self.takes) - 1)] if self.takes else "any"


def _of(
    name: str,
    takes: tuple[Takes, ...],
    gives: Kind,
    conformance: str,
    *,
    text: str = "",
    style: Style = "call",
    is_supported: bool = True,
) -> Entry:
    count = len(takes)
    return Entry(
        name, text or name.upper(), style, takes, gives, conformance, count, count, is_supported
    )


def _logical(name: str) -> Entry:
    return Entry(name, name.upper(), "infix", ("truth",), "truth", "basic-cql2", 2, None)


def _own(name: str, takes: tuple[Takes, ...], gives: Kind, *, least: int) -> Entry:
    return Entry(name, name, "call", takes, gives, "functions", least, len(takes), own=True)


# fmt: off
OPERATIONS: Final[Mapping[str, Entry]] = {entry.name: entry for entry in (
    _logical("and"), _logical("or"),
    _of("not", ("truth",), "truth", "basic-cql2", style="words"),
    *(_of(name, ("scalar", "scalar"), "truth", "basic-cql2", style="infix")
      for name in ("=", "<>", "<", ">", "<=", ">=")),
    _of("isNull", ("any",), "truth", "basic-cql2", text="IS NULL", style="words"),
    _of("like", ("text", "pattern"), "truth", "advanced-comparison-operators", style="words"),
    _of("between", ("ordered", "ordered", "ordered"), "truth", "advanced-comparison-operators",
        style="words"),
    _of("in", ("scalar", "list"), "truth", "advanced-comparison-operators", style="words"),
    _of("casei", ("text",), "text", "case-insensitive-comparison"),
    _of("accenti", ("text",), "text", "accent-insensitive-comparison"),
    *(_of(name, ("number", "number"), "number", "arithmetic", text=name, style="infix")
      for name in ("+", "-", "*", "/", "%", "div", "^")),
    _of("s_intersects", ("geometry", "geometry"), "truth", "basic-spatial-functions"),
    *(_of(name, ("geometry", "geometry"), "truth", "spatial-functions")
      for name in ("s_within", "s_disjoint")),
    *(_of(name, ("geometry", "geometry"), "truth", "spatial-functions", is_supported=False)
      for name in ("s_contains", "s_crosses", "s_equals", "s_overlaps", "s_touches")),
    *(_of(name, ("time", "time"), "truth", "temporal-functions") for name in (
        "t_after", "t_before", "t_contains", "t_disjoint", "t_during", "t_equals", "t_finishedBy",
        "t_finishes", "t_intersects", "t_meets", "t_metBy", "t_overlappedBy", "t_overlaps",
        "t_startedBy", "t_starts",
    )),
    *(_of(name, ("array", "array"), "truth", "array-functions")
      for name in ("a_containedBy", "a_contains", "a_equals", "a_overlaps")),
    _own("prediction", ("truth",), "truth", least=0),
    _own("count_predictions", ("truth",), "number", least=0),
    _own("distance", ("geometry", "geometry"), "number", least=2),
    _own("sent", ("name",), "truth", least=1),
    _own("now", (), "instant", least=0),
    _own("duration", ("text",), "duration", least=1),
)}
# fmt: on
_BY_LETTERS: Final = MappingProxyType({name.lower(): entry for name, entry in OPERATIONS.items()})


def entry_of(name: str) -> Entry | None:
    """Return the operation of this name, ignoring case; None for an unknown function."""
    return _BY_LETTERS.get(name.lower())
