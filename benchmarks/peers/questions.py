"""The questions that are compared, each with the same values put to us and to the peers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeAlias

import orjson

from benchmarks.query.bodies import Body, metadata, segment
from benchmarks.query.population import END, MODELS, SEGMENTS

MODEL = MODELS[0]


@dataclass(frozen=True, slots=True)
class Put:
    """One question, in the words of each.

    `body` is ours. JSONB is asked for what `contains` is contained in, and what the condition
    `tested` is true of, with a `{}` for each of its `values`. MLflow takes `filter_string`, None
    where it cannot say it. `before`: only what was received before then, which all can say.
    """

    body: Body
    contains: Mapping[str, Any] = field(default_factory=dict)
    tested: str | None = None
    values: tuple[Any, ...] = ()
    filter_string: str | None = None
    before: datetime | None = None


Make: TypeAlias = Callable[[Random], Put]


@dataclass(frozen=True, slots=True)
class Question:
    """One line of the comparison. `cannot`: why MLflow is not asked, for people to read."""

    name: str
    make: Make
    cannot: str | None = None


def equal(key: str, value: str, before: datetime | None = None) -> Put:
    """A text is so."""
    body = metadata((key, "eq", value))
    filters = [f"tag.`{key}` = '{value}'"]
    if before is not None:
        body |= {"received_at": {"to": before.isoformat().replace("+00:00", "Z")}}
        filters.append(f"trace.timestamp_ms < {round(before.timestamp() * 1000)}")
    return Put(body, {"metadata": {key: value}}, filter_string=" AND ".join(filters), before=before)


def between(low: int, high: int) -> Put:
    """A whole number lies between two, both included.

    As jsonpath it would take longer: the index takes it, finds nothing by it, and misleads.
    """
    return Put(
        metadata(("frame_number", "between", [low, high])),
        tested="(doc #> '{{metadata,frame_number}}')::int BETWEEN {} AND {}",
        values=(low, high),
    )


def at_path(angle: int) -> Put:
    """A number inside of an object is so."""
    return Put(
        metadata(("camera_position.angle", "eq", angle)),
        {"metadata": {"camera_position": {"angle": angle}}},
        filter_string=f"tag.`camera_position.angle` = '{angle}'",
    )


def detected(label: str, above: float) -> Put:
    """One and the same prediction has that label and a higher score."""
    condition = f"@.label == {_text(label)} && @.score > {above}"
    return Put(
        {"prediction": {"label": label, "score": {"gt": above}}},
        tested="doc @@ {}",
        values=(f"exists($.predictions[*] ? ({condition}))",),
    )


def at_night(street: str) -> Put:
    """A text begins so, and a boolean is true."""
    return Put(
        metadata(("segment", "like", f"{street}%"), ("night", "eq", True)),
        {"metadata": {"night": True}},
        "doc #>> '{{metadata,segment}}' LIKE {}",
        (f"{street}%",),
        f"tag.segment LIKE '{street}%' AND tag.night = 'true'",
    )


def _text(value: str) -> str:
    return orjson.dumps(value).decode()


def _recent(random: Random) -> datetime:
    """Whole milliseconds, as MLflow counts time."""
    return END - timedelta(milliseconds=random.randrange(72 * 3_600_000))


def _frames(random: Random) -> Put:
    low = random.randrange(999_000)
    return between(low, low + 999)


QUESTIONS: tuple[Question, ...] = (
    Question("equality, 2 %", lambda r: equal("data_source", "camera-0001", _recent(r))),
    Question("equality, 0.001 %", lambda r: equal("segment", segment(r))),
    Question("int range, 0.1 %", _frames, "a tag is text: no `<`, no `>`"),
    Question("JSON path, 0.4 %", lambda r: at_path(100 + r.randrange(55))),
    Question(
        "label and score",
        lambda r: detected("person", round(0.9 + 0.05 * r.random(), 4)),
        "no list of predictions, no number in a tag",
    ),
    Question(
        "AND of two: prefix, boolean",
        lambda r: at_night(f"street-{r.randrange(SEGMENTS // 100):04d}/"),
    ),
)
