"""The questions, as bodies of the api: each with values of its own at every run.

CASES are made of parts of a body, FILTERS of the filter language; a mix of generated filters is
one that nobody has tuned for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal, TypeAlias

from .population import (
    DAYS,
    END,
    HALF,
    LABELS,
    NEW_FIRMWARE,
    OLD_FIRMWARE,
    RARE_LABEL,
    SEGMENTS,
    START,
    TAGS,
    city,
)

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
# Name, and what is measured of all inferences of the model.
AGGREGATES: dict[str, Body] = {
    "time buckets: count and errors a day": {
        "measures": [{"function": "count"}, {"function": "share", "of": "ok", "is": False}],
        "group_by": [{"time": "day"}],
    },
    "group by a key of 2,000 values": {"group_by": ["data_source"], "limit": 50},
    "group by label": {"group_by": [{"label": True}]},
    "histogram of a number": {"measures": [{"function": "histogram", "of": "temperature"}]},
    "mean and percentiles": {
        "measures": [
            {"function": "mean", "of": "exposure"},
            {"function": "percentiles", "of": "exposure", "at": [50, 95, 99]},
        ]
    },
    "distinct values with a prefix": {
        "measures": [{"function": "distinct", "of": "segment", "prefix": "street-01"}]
    },
}


# Name, and the window.
OVERVIEWS: dict[str, Make] = {
    "overview: everything": lambda _: {},
    "overview: to within the last days": recent,
    "overview: one day": _day,
}


def _filter(make: Callable[[Random], str]) -> Callable[[Random], Body]:
    return lambda random: {"filter": make(random)} | recent(random)


def _box_filter(random: Random) -> str:
    west, south, east, north = box(random)
    return f"S_INTERSECTS(location, BBOX({west}, {south}, {east}, {north}))"


def _polygon(random: Random) -> str:
    """Eight corners around a city."""
    west, south, east, north = box(random)
    x, y, half = (west + east) / 2, (south + north) / 2, (east - west) / 4
    corners = [
        *((west, y - half), (x - half, south), (x + half, south), (east, y - half)),
        *((east, y + half), (x + half, north), (x - half, north), (west, y + half)),
    ]
    spelt = ", ".join(f"{x:.4f} {y:.4f}" for x, y in [*corners, corners[0]])
    return f"S_INTERSECTS(location, POLYGON(({spelt})))"


def _near(random: Random) -> str:
    west, south, east, north = box(random)
    return f"distance(location, POINT({(west + east) / 2:.4f} {(south + north) / 2:.4f})) < 5000"


def _frame_filter(random: Random, share: float) -> str:
    width = int(1_000_000 * share)
    low = random.randrange(1_000_000 - width)
    return f"frame_number BETWEEN {low} AND {low + width - 1}"


FILTERS: tuple[Case, ...] = (
    Case("filter: equality, 2 %", _filter(lambda _: "data_source = 'camera-0001'")),
    Case("filter: polygon, 0.2 %", _filter(_polygon)),
    Case("filter: box on the map, 0.2 %", _filter(_box_filter)),
    Case("filter: distance", _filter(_near)),
    Case(
        "filter: count_predictions",
        _filter(lambda r: f"count_predictions(label = 'person') >= {r.choice((5, 6, 7))}"),
    ),
    Case(
        "filter: prediction of four columns",
        _filter(
            lambda r: (
                f"prediction(label = 'dog' AND score < {0.1 + r.random() / 10:.3f}"
                " AND area > 5000 AND xmin < 400)"
            )
        ),
    ),
    Case(
        "filter: top_label and top_score",
        _filter(lambda r: f"top_label = 'cat' AND top_score < {0.1 + r.random() / 10:.3f}"),
        several=True,
    ),
    Case(
        "filter: OR of two rare",
        _filter(lambda r: f"segment = '{segment(r)}' OR {_frame_filter(r, 0.000_01)}"),
        several=True,
    ),
    Case(
        "filter: OR of rare and common",
        _filter(lambda r: f"segment = '{segment(r)}' OR camera_position.angle = 90"),
        several=True,
    ),
    Case(
        "filter: NOT of two",
        _filter(lambda _: "NOT (data_source = 'camera-0000' OR night)"),
        several=True,
    ),
    Case(
        "filter: NOT, nothing",
        _filter(lambda _: "NOT (organization IN ('city', 'rail', 'port'))"),
        empty=True,
    ),
    Case(
        "filter: arithmetic",
        _filter(lambda r: f"exposure * 100 + temperature > {125 + r.random():.3f}"),
        asks=("page",),
    ),
    Case(
        "filter: array",
        _filter(lambda r: f"A_CONTAINS(\"tags[]\", ('{r.choice(TAGS)}', 'tag-00'))"),
        asks=("page",),
    ),
)


def _leaf(random: Random) -> str:
    """A predicate of any share, rare ones as often as common ones."""
    leaves: tuple[Callable[[], str], ...] = (
        lambda: f"organization = '{random.choice(('city', 'rail', 'port'))}'",
        lambda: f"data_source = 'camera-{int(2_000 * random.random() ** 3):04d}'",
        lambda: f"segment = '{segment(random)}'",
        lambda: f"segment LIKE 'street-{random.randrange(1_000):04d}%'",
        lambda: f"segment LIKE 'street-0{random.randrange(10)}%'",
        lambda: _frame_filter(random, 10 ** -random.uniform(0.05, 5)),
        lambda: f"firmware = '{random.choice(OLD_FIRMWARE + NEW_FIRMWARE)}'",
        lambda: (
            f"camera_position.angle {random.choice(('=', '<>', '>='))} "
            f"{random.choice((90, 90, 100 + random.randrange(55)))}"
        ),
        lambda: f"exposure {random.choice('<>')} {random.random():.3f}",
        lambda: f"temperature {random.choice('<>')} {random.gauss(15, 10):.1f}",
        lambda: "night",
        lambda: "ok",
        lambda: f"\"tags[]\" = '{random.choice(TAGS)}'",
        lambda: (
            f"{random.choice(('note', 'incident', 'tags', 'operator'))} IS "
            f"{random.choice(('', 'NOT '))}NULL"
        ),
        lambda: _box_filter(random),
        lambda: (
            f"prediction(label = '{random.choice((*LABELS[:12], RARE_LABEL))}'"
            f" AND score {random.choice('<>')} {random.random():.3f})"
        ),
        lambda: f"count_predictions() {random.choice(('=', '>'))} {random.randrange(11)}",
        lambda: f"top_score < {random.random():.3f}",
        lambda: f"model_ms > {1 + random.random() * 20:.2f}",
    )
    return random.choice(leaves)()


def tree(random: Random, depth: int = 3) -> str:
    """A filter of up to 3 levels of AND, OR and NOT."""
    if depth == 0 or random.random() < 0.25:
        return _leaf(random)
    if random.random() < 0.15:
        return f"NOT ({tree(random, depth - 1)})"
    parts = [tree(random, depth - 1) for _ in range(random.choice((2, 2, 3)))]
    return f" {random.choice(('AND', 'AND', 'OR'))} ".join(f"({part})" for part in parts)


def mix(count: int) -> list[Body]:
    """So many trees, always the same ones."""
    return [{"filter": tree(Random(f"held out {number}"))} for number in range(count)]
