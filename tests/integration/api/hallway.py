"""The 100 inferences of docs/reference/filters.md: one every six hours, from two cameras."""

from datetime import timedelta

from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction
from tests.integration.stored_inferences import NewInference, at

MODEL = "hallway-detector"
_OPERATORS = ("Zoë", "ZOË", "José", "jose", "Straße")


def make_frames() -> list[NewInference]:
    return [_make_frame(n) for n in range(100)]


def _make_frame(n: int) -> NewInference:
    received = at(n * 6 * 3600)
    forwarded = received + timedelta(milliseconds=2)
    responded = forwarded + timedelta(milliseconds=20 + n)
    failed = n % 10 == 9
    extras = Extras(
        ok=not failed,
        http_status=503 if failed else 200,
        error="the model timed out" if failed else None,
        model_version="1.0" if n < 60 else "1.1",
    )
    return NewInference(
        f"frame-{n:03d}",
        received,
        _make_metadata(n),
        None if failed else _make_predictions(n),
        aliases=(f"req/{n}",),
        extras=extras,
        model_id=MODEL,
        times=(forwarded, responded, responded + timedelta(milliseconds=5)),
    )


def _make_metadata(n: int) -> list[tuple[str, str, str]]:
    night = n % 4 in {0, 3}
    tags = ["night" if night else "day", *["rain"] * (n % 7 == 0), *["snow"] * (n % 25 == 0)]
    items = [
        ("frame_number", "int", str(8950 + n)),
        ("frame_limit", "int", str(9000 + 20 * (n % 2))),
        ("data_source", "string", f"{'garden' if n % 3 == 0 else 'hallway'}-camera-feed"),
        ("camera-id", "string", f"cam-{n % 5}"),
        ("camera_position", "json", f'{{"angle": {n / 4}, "zoom": {1 + n % 3}}}'),
        ("tags", "json", str(tags).replace("'", '"')),
        ("shift_start", "timestamp", f"2026-11-{1 + n // 4:02d}T06:00:00+02:00"),
        ("longitude", "float", f"{-43.95 + n / 100:.2f}"),
        ("latitude", "float", f"{-33 + n % 10 / 10:.1f}"),
    ]
    if n % 2 == 0:
        items.append(("temperature", "float", f"{n * 0.3 - 5:.1f}"))
    if n % 5 == 0:
        items.append(("operator", "string", _OPERATORS[n // 5 % 5]))
    if n % 10 == 0:
        items.append(("reviewed", "bool", str(n % 20 == 0)))
    return items


def _make_predictions(n: int) -> list[Prediction]:
    """Return up to three persons, and in every sixth frame a car."""
    detections = [("person", (950 - 300 * k - n) / 1000, 1000.0 * (k + 1)) for k in range(n % 4)]
    detections += [("car", 0.3, 500.0)] if n % 6 == 0 else []
    ranked = enumerate(sorted(detections, key=lambda detection: -detection[1]))
    return [
        Prediction(ordinal, ordinal + 1, 0, label=label, score=score, area=area)
        for ordinal, (label, score, area) in ranked
    ]
