"""The questions of the matrix, as bodies of the api: each with values of its own at every run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal, TypeAlias

from .population import DAYS, END, HALF, OLD_FIRMWARE, RARE_LABEL, SEGMENTS, START, TAGS, city

Body: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[[Random], Body]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the matrix. `asks`: what is asked of it, each with the bar it is held to.

    `several` predicates: there is no bar for their count.
    """

    name: str
    make: Make
    asks: Sequence[Literal["page", "count"]] = ("page", "count")
    empty: bool = False
    several: bool = False

    def kind(self, question: str) -> str:
        """What a line of it is held to."""
        if question == "page":
            return "empty" if self.empty else "page"
        return "count of several" if self.several else "count"


def metadata(*conditions: tuple[str, str, Any]) -> Body:
    """Conditions (key, operator, value), as `metadata_filter` takes them."""
    return {
        "metadata_filter": [
            {"key": key, "operator": operator, "value": value}
            for key, operator, value in conditions
        ]
    }


def recent(random: Random) -> Body:
    """A window that ends somewhere in the last three days: other rows at every run."""
    return {"received_at": {"to": _spelt(END - timedelta(hours=72 * random.random()))}}


def _spelt(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _recently(*conditions: tuple[str, str, Any]) -> Make:
    return lambda random: metadata(*conditions) | recent(random)


def _frames(share: float) -> Make:
    width = int(1_000_000 * share)

    def make(random: Random) -> Body:
        low = random.randrange(1_000_000 - width)
        return metadata(("frame_number", "between", [low, low + width - 1]))

    return make


def _street(random: Random) -> str:
    return f"street-{random.randrange(SEGMENTS // 100):04d}/"


def segment(random: Random) -> str:
    """The name of a segment, which one inference in 100,000 has."""
    number = random.randrange(SEGMENTS)
    return f"street-{number // 100:04d}/pole-{number:06d}"


def box(random: Random, size: float = 0.1) -> tuple[float, float, float, float]:
    """West, south, east, north: around one of the larger cities, 0.2 % of all."""
    latitude, longitude = city(20 + random.randrange(60))
    edges = longitude - size, latitude - size, longitude + size, latitude + size
    west, south, east, north = (round(edge, 4) for edge in edges)
    return west, south, east, north


def _inside(random: Random) -> Body:
    west, south, east, north = box(random)
    return metadata(("latitude", "between", [south, north]), ("longitude", "between", [west, east]))


def _person(random: Random) -> Body:
    low = round(0.9 + 0.05 * random.random(), 4)
    return {"prediction": {"label": "person", "score": {"gt": low}}}


def _old_and_new(random: Random) -> Body:
    """Each is half of all, and no inference is both."""
    version, later = random.choice(OLD_FIRMWARE), HALF + timedelta(hours=24 + random.random())
    return metadata(("firmware", "eq", version), ("captured_at", "gt", _spelt(later)))


def _day(random: Random) -> Body:
    since = START + timedelta(days=random.random() * (DAYS - 1))
    return {"received_at": {"from": _spelt(since), "to": _spelt(since + timedelta(days=1))}}


CASES: tuple[Case, ...] = (
    Case("everything", recent),
    Case("one day", _day),
    Case("equality, 90 %", _recently(("organization", "eq", "city"))),
    Case("equality, 2 %", _recently(("data_source", "eq", "camera-0001"))),
    Case("equality, 0.001 %", lambda r: metadata(("segment", "eq", segment(r)))),
    Case("only in the oldest half", lambda r: metadata(("firmware", "eq", r.choice(OLD_FIRMWARE)))),
    Case("int range, 0.001 %", _frames(0.000_01)),
    Case("int range, 0.1 %", _frames(0.001)),
    Case("int range, 90 %", _frames(0.9)),
    Case("prefix, 0.1 % of 100 values", lambda r: metadata(("segment", "like", _street(r) + "%"))),
    Case(
        "prefix, 10 % of 10,000 values",
        lambda r: metadata(("segment", "like", f"street-0{r.randrange(10)}%")),
    ),
    Case(
        "JSON path, 0.4 %",
        lambda r: metadata(("camera_position.angle", "eq", 100 + r.randrange(55))),
    ),
    Case("JSON path, 78 %", _recently(("camera_position.angle", "eq", 90))),
    Case("array element", lambda r: metadata(("tags[]", "eq", r.choice(TAGS)))),
    Case("exists, 2 %", _recently(("note", "exists", None))),
    Case("exists, 0.05 %", _recently(("incident", "exists", None))),
    Case("missing, 98 %", _recently(("note", "missing", None))),
    Case("missing, 40 %", _recently(("tags", "missing", None))),
    Case("missing, nothing", _recently(("organization", "missing", None)), empty=True),
    Case("label and score", _person),
    Case("rare label", lambda r: {"prediction": {"label": RARE_LABEL}} | recent(r)),
    Case("geo box, 0.2 %", _inside, several=True),
    Case("NOT, 90 %", _recently(("data_source", "neq", "camera-0000"))),
    Case(
        "NOT, nothing",
        _recently(("organization", "not_in", ["city", "rail", "port"])),
        empty=True,
    ),
    Case("OR of two rare", lambda r: metadata(("segment", "in", [segment(r), segment(r)]))),
    Case("not ok, 3 %", lambda r: {"ok": False} | recent(r)),
    Case(
        "AND of two",
        lambda r: metadata(("segment", "like", _street(r) + "%"), ("night", "eq", True)),
        several=True,
    ),
    Case(
        "AND of four common",
        _recently(
            ("organization", "eq", "city"),
            ("exposure", "lt", 0.55),
            ("temperature", "gt", 5),
            ("camera_position.angle", "eq", 90),
        ),
        several=True,
    ),
    Case(
        "AND of three anti-correlated",
        _recently(("night", "eq", True), ("exposure", "gt", 0.598), ("temperature", "lt", 12)),
        several=True,
    ),
    Case(
        "AND of three, 0.0005 %",
        _recently(("night", "eq", True), ("exposure", "gt", 0.9), ("temperature", "lt", 12)),
        several=True,
    ),
    Case("AND of two halves, nothing", _old_and_new, empty=True, several=True),
    Case(
        "a value nobody has", lambda r: metadata(("frame_number", "eq", 2_000_000 + r.randrange(9)))
    ),
    Case(
        "the oldest first",
        lambda r: (
            metadata(("data_source", "eq", "camera-0001")) | {"sort": "received_at"} | _day(r)
        ),
        asks=("page",),
    ),
)
