"""What two inferences disagree in, and how much."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from inference_store.query.read import PREDICTION_FIELDS, Inference
from inference_store.replay.differences import compare, measure

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def predict(number: int, label: str | None = None, **values: Any) -> list[Any]:
    given = {"ordinal": number, "rank": number + 1, "output": 0, "label": label, **values}
    return [given.get(name) for name in PREDICTION_FIELDS]


def box(number: int, label: str, x: float, size: float = 10) -> list[Any]:
    sides = {"xmin": x, "ymin": 0, "xmax": x + size, "ymax": size}
    return predict(number, label, **sides)


def infer(label: str | None, *predictions: list[Any], ok: bool = True) -> Inference:
    row = {
        "uid": UUID(int=1),
        "ok": ok,
        "top_score": 0.5,
        "model_version": "1",
        "forwarded_at": NOW,
        "responded_at": NOW + timedelta(milliseconds=20),
    }
    return Inference(row, label, (), False, False, b"[]", predictions)


LABEL = infer("cat")
BOXES = infer("cat", box(0, "cat", 0), box(1, "cat", 100))
NUMBER = infer(None, predict(0, value=Decimal(100)), predict(1, value=Decimal(0)))
TEXT = infer(None, predict(0, text="one"), predict(1, text="two"))


@pytest.mark.parametrize(
    ("old", "new", "disagreement"),
    [
        (LABEL, LABEL, 0),
        (LABEL, infer("dog"), 1),
        (LABEL, infer("cat", ok=False), 2),
        # moved by a little, in another order
        (BOXES, infer("cat", box(0, "cat", 102), box(1, "cat", 1)), 0),
        (BOXES, infer("cat", box(0, "cat", 0), box(1, "dog", 100)), 2 / 3),
        (BOXES, infer("cat"), 1),
        # each is in one pair
        (BOXES, infer("cat", box(0, "cat", 0), box(1, "cat", 1)), 2 / 3),
        (NUMBER, infer(None, predict(0, value=100.05), predict(1, value=0.0005)), 0),
        (NUMBER, infer(None, predict(0, value=101), predict(1, value=0)), 1 / 2),
        (NUMBER, infer(None, predict(0, value=100)), 1 / 2),
        (TEXT, infer(None, predict(0, text="two"), predict(1, text="one")), 0),
        (TEXT, infer(None, predict(0, text="one"), predict(1, text="2")), 1 / 2),
    ],
)
def test_disagreement_is_measured(old: Inference, new: Inference, disagreement: float) -> None:
    assert measure(compare(old, new, 0.001)) == pytest.approx(disagreement)
    assert measure(compare(new, old, 0.001)) == pytest.approx(disagreement)


@pytest.mark.parametrize(("asked", "other"), [(None, False), ("1", False), ("2", True)])
def test_a_version_that_is_ignored_is_told(asked: str | None, other: bool) -> None:
    told = compare(LABEL, LABEL, 0.001, asked)["version"]
    assert told == {"before": "1", "after": "1", "other": other}


def test_both_sides_are_told() -> None:
    difference = compare(BOXES, infer("dog", box(0, "cat", 4)), 0.001)
    assert difference["label"] == {"before": "cat", "after": "dog", "flipped": True}
    assert difference["boxes"] == {"matched": 0, "lost": 2, "new": 1}
    assert difference["latency_ms"] == {"before": 20.0, "after": 20.0}
    assert difference["tokens"] == {"before": None, "after": None}
    assert difference["values"] is difference["texts"] is None
