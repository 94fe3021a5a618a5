"""The conformance classes of OGC CQL2 1.0 (OGC 21-065r2, clause 2), and the supported ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

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


def _table(*entries: Conformance) -> Mapping[str, Conformance]:
    return MappingProxyType({entry.name: entry for entry in entries})


# fmt: off
CONFORMANCE: Final = _table(
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
                "S_INTERSECTS with every geometry; of these all are kept but LINESTRING and "
                "MULTILINESTRING", kept=False),
    Conformance("spatial-functions", "Spatial Functions",
                "eight spatial relations; of these S_WITHIN and S_DISJOINT are kept",
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
)
# fmt: on
