"""Questions in the filter language, and a mix of generated ones that nobody has tuned for."""

from collections.abc import Callable
from random import Random

from .bodies import Body, Case, box, recent, segment
from .population import LABELS, NEW_FIRMWARE, OLD_FIRMWARE, RARE_LABEL, TAGS

_SEED = "held out"


def _filter(make: Callable[[Random], str]) -> Callable[[Random], Body]:
    return lambda random: {"filter": make(random)} | recent(random)


def _box(random: Random) -> str:
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


def _frames(random: Random, share: float) -> str:
    width = int(1_000_000 * share)
    low = random.randrange(1_000_000 - width)
    return f"frame_number BETWEEN {low} AND {low + width - 1}"


FILTERS: tuple[Case, ...] = (
    Case("filter: equality, 2 %", _filter(lambda _: "data_source = 'camera-0001'")),
    Case("filter: polygon, 0.2 %", _filter(_polygon)),
    Case("filter: box on the map, 0.2 %", _filter(_box)),
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
        _filter(lambda r: f"segment = '{segment(r)}' OR {_frames(r, 0.000_01)}"),
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
        lambda: _frames(random, 10 ** -random.uniform(0.05, 5)),
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
        lambda: _box(random),
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
    return [{"filter": tree(Random(f"{_SEED} {number}"))} for number in range(count)]
