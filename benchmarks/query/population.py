"""The population: which inferences there are, and all that is known of them. Pure, and the same
wherever it is made: every column of every chunk has a generator of its own, seeded by its place.

A street's cameras and their detector: thirty days, four models (70, 10, 10 and 10 %), thirteen
values of metadata and five predictions an inference, skewed as such things are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

Column: TypeAlias = np.ndarray[Any, Any]

# Of the rows that it makes: another one is another data set.
VERSION = 1
_SEED = 20_251_101
END = datetime(2025, 11, 1, tzinfo=UTC)
DAYS = 30
START = END - timedelta(days=DAYS)
# The middle of the thirty days: the firmware of before is found before it only.
HALF = START + timedelta(days=DAYS / 2)

MODELS = ("street-detector", "rail-detector", "port-detector", "night-detector")
_MODEL_SHARES = (0.7, 0.1, 0.1, 0.1)
ORGANIZATIONS = ("city", "rail", "port")
_ORGANIZATION_SHARES = (0.9, 0.09, 0.01)
CAMERAS = tuple(f"camera-{number:04d}" for number in range(2_000))
SEGMENTS = 100_000
OLD_FIRMWARE = ("4.1.0", "4.1.1", "4.1.2", "4.1.3")
NEW_FIRMWARE = ("4.2.0", "4.2.1", "4.2.2", "4.2.3")
TAGS = tuple(f"tag-{number:02d}" for number in range(40))
COMMON_ANGLE = 90
_CITIES = 400
MOST_PREDICTIONS = 10
RARE_LABEL = "unicorn"
LABELS = (
    *("person", "car", "bicycle", "dog", "bus", "truck", "cat", "bench"),
    *(f"thing-{number:02d}" for number in range(72)),
    RARE_LABEL,
)
_FAILED, _RARE = 0.03, 0.000_01


def _skewed(count: int, *first: float, power: float = 0.8) -> Column:
    """Shares that fall as those of a harmonic series do; the first ones as given."""
    rest = 1 / np.arange(1, count - len(first) + 1) ** power
    return np.concatenate([first, rest / rest.sum() * (1 - sum(first))])


_CAMERA_SHARES = np.cumsum(_skewed(len(CAMERAS), 0.1, 0.02))
_TAG_SHARES = np.cumsum(_skewed(len(TAGS)))
_CITY_SHARES = np.cumsum(_skewed(_CITIES))
_LABEL_SHARES = np.cumsum(_skewed(len(LABELS) - 1, 0.4, 0.2, power=1.0))
_PREDICTION_SHARES = np.cumsum([0.03, 0.05, 0.08, 0.12, 0.15, 0.17, 0.15, 0.1, 0.07, 0.05, 0.03])
_PLACES = np.random.Generator(np.random.PCG64(_SEED)).uniform((-60, -180), (60, 180), (_CITIES, 2))


@dataclass(frozen=True)
class Chunk:
    """Some inferences of one span, next to each other in it.

    `first` is the number of its first one in the whole population. Received between `lo` and
    `hi`, in order; `late`: in no order, for they came long after they were received.
    """

    first: int
    count: int
    lo: datetime
    hi: datetime
    late: bool = False

    def _random(self, column: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([_SEED, self.first, crc32(column.encode())]))

    def _uniform(self, column: str) -> Column:
        return self._random(column).random(self.count)

    def _chosen(self, column: str, shares: Column) -> Column:
        """Places in a list, by the sums of its shares."""
        return np.minimum(np.searchsorted(shares, self._uniform(column)), len(shares) - 1)

    @cached_property
    def number(self) -> Column:
        return np.arange(self.first, self.first + self.count)

    @cached_property
    def model(self) -> Column:
        """Places in MODELS."""
        return self._chosen("model", np.cumsum(_MODEL_SHARES))

    @cached_property
    def received_at(self) -> Column:
        """Microseconds since 1970."""
        low, high = (int(instant.timestamp() * 1e6) for instant in (self.lo, self.hi))
        random = self._uniform("received_at")
        share = random if self.late else (np.arange(self.count) + random) / self.count
        return np.minimum(low + (share * (high - low)).astype(np.int64), high - 1)

    @cached_property
    def uid(self) -> Column:
        """As `events.uid` makes them, 16 bytes; the hash is random."""
        milliseconds, microseconds = np.divmod(self.received_at.astype(np.uint64), np.uint64(1000))
        uids = np.zeros(self.count, dtype=[("time", ">u8"), ("hash", ">u8")])
        uids["time"] = milliseconds << np.uint64(16) | np.uint64(0x8000) | microseconds
        random = self._random("uid").integers(0, 1 << 62, self.count, dtype=np.uint64)
        uids["hash"] = random | np.uint64(2 << 62)
        return uids.view("V16").reshape(self.count)

    @cached_property
    def data_hash(self) -> Column:
        """SHA-256 in hexadecimal, as bytes."""
        raw = np.frombuffer(self._random("data_hash").bytes(32 * self.count), dtype=np.uint8)
        nibbles = np.stack([raw >> 4, raw & 15], axis=1).reshape(self.count, 64)
        return np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[nibbles].view("S64").ravel()

    @cached_property
    def frame_number(self) -> Column:
        return self._random("frame_number").integers(0, 1_000_000, self.count)

    @cached_property
    def camera(self) -> Column:
        """Places in CAMERAS."""
        return self._chosen("camera", _CAMERA_SHARES)

    @cached_property
    def organization(self) -> Column:
        """Places in ORGANIZATIONS."""
        return self._chosen("organization", np.cumsum(_ORGANIZATION_SHARES))

    @cached_property
    def segment(self) -> Column:
        """Of a hundred thousand segments of streets, a hundred to a street."""
        return self._random("segment").integers(0, SEGMENTS, self.count)

    @cached_property
    def firmware(self) -> Column:
        """Places in OLD_FIRMWARE and NEW_FIRMWARE, one after the other."""
        version = self._random("firmware").integers(0, len(OLD_FIRMWARE), self.count)
        after = self.received_at >= int(HALF.timestamp() * 1e6)
        return np.where(after, version + len(OLD_FIRMWARE), version)

    @cached_property
    def location(self) -> Column:
        """Latitude and longitude times 10,000."""
        city = _PLACES[self._chosen("city", _CITY_SHARES)]
        near = self._random("location").normal(0, 0.05, (self.count, 2))
        return np.rint((city + near) * 10_000).astype(np.int64)

    @cached_property
    def night(self) -> Column:
        hour = self.received_at // 3_600_000_000 % 24
        return ((hour < 6) | (hour >= 20)) ^ (self._uniform("night") < 0.02)

    @cached_property
    def exposure(self) -> Column:
        """Times 10,000. At night it is hardly ever above 0.6."""
        share = self._uniform("exposure")
        bright = self._uniform("bright") < 0.002
        return (np.where(self.night & ~bright, 0.6 * share, share) * 10_000).astype(np.int64)

    @cached_property
    def temperature(self) -> Column:
        """Times 10,000, in tenths. Hardly ever above 25 where the exposure is under 0.6."""
        warm = np.where(self.exposure >= 6_000, 20, 10)
        return np.rint(self._random("temperature").normal(warm, 5) * 10).astype(np.int64) * 1_000

    @cached_property
    def captured_at(self) -> Column:
        """Microseconds since 1970."""
        return self.received_at - self._random("captured_at").integers(0, 5_000, self.count) * 1000

    @cached_property
    def angle(self) -> Column:
        """78 % are COMMON_ANGLE, and each of 55 others 0.4 %."""
        other = 100 + self._random("angle").integers(0, 55, self.count)
        return np.where(self._uniform("turned") < 0.78, COMMON_ANGLE, other)

    @cached_property
    def tags(self) -> Column:
        """Three places in TAGS each, -1 for none; 40 % have no tag at all, not even a list."""
        chosen = np.minimum(
            np.searchsorted(_TAG_SHARES, self._random("tags").random((self.count, 3))),
            len(TAGS) - 1,
        )
        many = np.searchsorted([0.4, 0.65, 0.85], self._uniform("tagged"), side="right")
        chosen[np.arange(3) >= many[:, None]] = -1
        for position in (1, 2):  # a tag counts once
            repeated = (chosen[:, :position] == chosen[:, position : position + 1]).any(axis=1)
            chosen[repeated, position] = -1
        return chosen

    @cached_property
    def noted(self) -> Column:
        """2 % have a note."""
        return self._uniform("noted") < 0.02

    @cached_property
    def incident(self) -> Column:
        """0.05 % have the number of an incident; else -1."""
        number = self._random("incident").integers(0, 1_000, self.count)
        return np.where(self._uniform("happened") < 0.000_5, number, -1)

    @cached_property
    def unattended(self) -> Column:
        """1 % have an operator, which is JSON's null."""
        return self._uniform("unattended") < 0.01

    @cached_property
    def ok(self) -> Column:
        """3 % failed, and have no predictions."""
        return self._uniform("ok") >= _FAILED

    @cached_property
    def predictions(self) -> Column:
        """How many; 0 where it failed."""
        return np.where(self.ok, self._chosen("predictions", _PREDICTION_SHARES), 0)

    @cached_property
    def there(self) -> Column:
        """Which of MOST_PREDICTIONS there are."""
        return np.arange(MOST_PREDICTIONS) < self.predictions[:, None]

    @cached_property
    def label(self) -> Column:
        """Places in LABELS, for each of MOST_PREDICTIONS."""
        random = self._random("label").random((self.count, MOST_PREDICTIONS))
        labels = np.minimum(np.searchsorted(_LABEL_SHARES, random), len(LABELS) - 2)
        labels[self._uniform("rare") < _RARE, 0] = LABELS.index(RARE_LABEL)
        return labels

    @cached_property
    def score(self) -> Column:
        """The best first."""
        falling = self._random("score").random((self.count, MOST_PREDICTIONS)) ** 0.3
        return np.round(np.cumprod(falling, axis=1), 6)

    @cached_property
    def box(self) -> Column:
        """xmin, ymin, xmax, ymax in pixels of 1280 × 720, in halves."""
        random = self._random("box").random((self.count, MOST_PREDICTIONS, 4))
        corner, size = random[..., :2] * (1180, 620), 4 + random[..., 2:] ** 2 * 96
        return np.round(np.concatenate([corner, corner + size], axis=-1) * 2) / 2


def city(number: int) -> tuple[float, float]:
    """Latitude and longitude of a city, the largest first."""
    latitude, longitude = _PLACES[number]
    return float(latitude), float(longitude)


# Inferences as a client would send them.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRMWARE = (*OLD_FIRMWARE, *NEW_FIRMWARE)
_TYPES = {int: "int", float: "float", str: "string", bool: "bool", dict: "json", list: "json"}


@dataclass(frozen=True, slots=True)
class InferenceDescription:
    """One inference. `metadata` by key; times among them are RFC 3339."""

    number: int
    model_number: int
    """Of its model in MODELS."""
    received_at: datetime
    metadata: dict[str, Any]
    predictions: list[dict[str, Any]] | None
    """None: it failed."""

    def typed(self) -> list[dict[str, Any]]:
        """The metadata as a list of key, type and value."""
        return [{"key": k, "type": _type(k, v), "value": v} for k, v in self.metadata.items()]


def _type(key: str, value: Any) -> str:
    return "timestamp" if key == "captured_at" else _TYPES.get(type(value), "json")


def describe(chunk: Chunk) -> Iterator[InferenceDescription]:
    """Yield every inference of a chunk, in order."""
    for at in range(chunk.count):
        yield InferenceDescription(
            number=int(chunk.number[at]),
            model_number=int(chunk.model[at]),
            received_at=_instant(chunk.received_at[at]),
            metadata=_metadata(chunk, at),
            predictions=_predictions(chunk, at) if chunk.ok[at] else None,
        )


def _instant(microseconds: Any) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))


def _metadata(chunk: Chunk, at: int) -> dict[str, Any]:
    street = int(chunk.segment[at])
    members: dict[str, Any] = {
        "frame_number": int(chunk.frame_number[at]),
        "latitude": int(chunk.location[at, 0]) / 10_000,
        "longitude": int(chunk.location[at, 1]) / 10_000,
        "exposure": int(chunk.exposure[at]) / 10_000,
        "temperature": int(chunk.temperature[at]) / 10_000,
        "camera_position": {"angle": int(chunk.angle[at])},
        "data_source": CAMERAS[chunk.camera[at]],
        "organization": ORGANIZATIONS[chunk.organization[at]],
        "segment": f"street-{street // 100:04d}/pole-{street:06d}",
        "firmware": _FIRMWARE[chunk.firmware[at]],
        "night": bool(chunk.night[at]),
        "captured_at": _instant(chunk.captured_at[at]).isoformat(),
    }
    if tags := [TAGS[tag] for tag in chunk.tags[at] if tag >= 0]:
        members["tags"] = tags
    if chunk.noted[at]:
        members["note"] = f"seen by hand, number {chunk.number[at]:010d}"
    if chunk.incident[at] >= 0:
        members["incident"] = int(chunk.incident[at])
    if chunk.unattended[at]:
        members["operator"] = None
    return members


def _predictions(chunk: Chunk, at: int) -> list[dict[str, Any]]:
    corners = ("xmin", "ymin", "xmax", "ymax")
    return [
        {
            "label": LABELS[chunk.label[at, rank]],
            "score": float(chunk.score[at, rank]),
            **dict(zip(corners, map(float, chunk.box[at, rank]), strict=True)),
        }
        for rank in range(int(chunk.predictions[at]))
    ]
