"""Inferences of every sort, and the facts of each: the same seed makes the same ones."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, get_type_hints

from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction
from inference_store.query.properties import PROPERTIES
from tests.integration.stored_inferences import START, NewInference
from tests.unit.query.filters.oracle import Facts, milliseconds

# Texts with equal index prefixes, in characters of one to four bytes.
_PREFIXES = [c * (n // len(c.encode())) for c in "a€" for n in (444, 445, 448, 512, 513)]
_ENDINGS = ("", "a", "\x01", "é", "\ud7ff", "😀", "\U0010ffff")
LONG = [prefix + ending for prefix in _PREFIXES for ending in _ENDINGS]
SHORT = [
    *("", "a", "ab", "abc", "b", "A", "Ab", "é", "e", "e\u0301", "É", "E", "Straße", "STRASSE"),
    *("100%", "a_c", "a\\c", "aXc", "😀", "\ue000", "\ud7ff", "\U0010ffff", "ﬁn", "FIN", "Ǆ", "İ"),
    *("1", "0.1", "true", "2026-11-01", "ΌΣΟΣ", "όσος", "οσος", "Ångström", "angstrom", "a\nb"),
]
NUMBERS = [
    Decimal(text)
    for text in (
        *("0", "-0", "1", "1.0", "-1", "2", "3", "7", "0.1", "0.10", "-0.5", "2.5", "100"),
        *("1e400", "-1E-400", "9007199254740993", "9007199254740992", "98765432109876543210"),
        *("98765432109876543211", "0.1000000000000000001", "123456.789", "99999999999999.99"),
    )
]
SCORES = [0.0, 0.1, 0.1 + 2**-50, 0.3, 0.1 + 0.2, 0.5, 0.9, 1.0, 1e-7, 5e-324]
LABELS = ["person", "car", "Car", "dog", "café", "cafe"]
INSTANTS = [
    START + timedelta(days=days, microseconds=micros)
    for days in (0, 1, 2)
    for micros in (-1, 0, 1, 999, 1000, 86_399_999_999)
]
_DEGREES = ("-180", "-1", "0", "0.5", "1", "1E-400", "1E-29", "1E-40", "2", "10", "179.9", "180")
DEGREES = [Decimal(text) for text in _DEGREES]
LATITUDES = [Decimal(text) for text in ("-90", "-1", "0", "0.5", "1", "2", "10", "89.9", "90")]
FLAGS = ("capture_request_over_cap", "capture_response_not_json", "standard_from_client")
KEYS = ("k", "n", "s", "when", "flag", "tags[]", "deep.er", "deep.list[]")
"""Metadata keys; `k` is of any type."""
SEVERAL = frozenset({"k", "deep.er", "tags[]", "deep.list[]"})
"""Those of which an inference may have several values: a repeated key, and one like a path."""
_PROPERTIES = {
    name: kind
    for name, kind in get_type_hints(Extras).items()
    if name in PROPERTIES and name != "project_id"
}
"""The fields of an event that are properties of their own, and their types."""
_DRAWN = {
    *("ok", "http_status", "error", "model_version"),
    *("data_hash", "data_size", "width", "height"),
}
_BY_TYPE: Mapping[Any, Sequence[Any]] = {
    str | None: (None, "x", "é"),
    int | None: (None, 0, 7),
    bool | None: (None, True, False),
}


class InferenceMaker:
    """Makes random inferences."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def make_inferences(self, model_id: str, count: int) -> list[NewInference]:
        return [self._make_inference(model_id, number) for number in range(count)]

    def _make_inference(self, model_id: str, number: int) -> NewInference:
        received = self._pick(INSTANTS)
        return NewInference(
            self._pick(["a", "b", f"id-{number}"]) + "." * number,
            received,
            self._metadata(),
            self._predictions(),
            aliases=tuple({self._pick(["a", "b", "é"]) for _ in range(self._upto(2))}),
            extras=self._extras(number),
            model_id=model_id,
            flags=tuple(flag for flag in FLAGS if self._upto(3) == 0),
            times=self._times(received),
        )

    def _pick(self, some: Sequence[Any]) -> Any:
        return self._chance.choice(some)

    def _upto(self, most: int) -> int:
        return self._chance.randint(0, most)

    def _maybe(self, some: Sequence[Any]) -> Any:
        return self._pick([None, *some])

    def _times(self, at: datetime) -> tuple[datetime | None, datetime | None, datetime | None]:
        micros = [None, 0, 1, 1500, 2_000_000, 1_234_567]
        delays = [self._pick(micros) for _ in range(3)]
        first, second, third = (
            None if delay is None else at + timedelta(microseconds=delay) for delay in delays
        )
        return first, second, third

    def _extras(self, number: int) -> Extras:
        drawn = Extras(
            ok=self._maybe([True, False]),
            http_status=self._maybe([200, 404]),
            error=self._maybe(["boom", "Boom é", "a" * 600]),
            model_version=self._maybe(["1", "2"]),
            data_hash=self._maybe(["00", "ab", "ff"]),
            data_size=self._maybe([0, 1000, 9_007_199_254_740_993]),
            width=self._maybe([0, 640, 641]),
            height=self._maybe([0, 480]),
        )
        return replace(drawn, **_other_extras(number))

    def _metadata(self) -> list[tuple[str, str, Any]]:
        items = {
            "k": self._anything(),
            "n": (self._pick(["int", "float"]), str(self._pick(NUMBERS))),
            "s": ("string", self._text()),
            "when": ("timestamp", self._pick(INSTANTS).isoformat()),
            "flag": ("bool", self._pick(["true", "false", "1"])),
            "tags": ("json", self._tags()),
            "deep": ("json", self._json({"er": self._scalar(), "list": [self._scalar()]})),
            "longitude": ("float", str(self._pick(DEGREES))),
            "latitude": ("float", str(self._pick([*LATITUDES, *LATITUDES, Decimal(91)]))),
        }
        sent = [(key, *item) for key, item in items.items() if self._upto(9) > 2]
        again = [("k", *self._anything()), ("deep.er", "string", self._text())]
        return sent + [item for item in again if self._upto(9) > 6]

    def _anything(self) -> tuple[str, Any]:
        item: tuple[str, Any] = self._pick(
            [
                ("string", self._text()),
                ("string", None),
                ("int", str(self._pick(NUMBERS))),
                ("float", "not a number"),
                ("float", "NaN"),
                ("bool", "true"),
                ("timestamp", self._pick(INSTANTS).isoformat()),
                ("json", self._json(self._scalar())),
                ("json", "[]"),
                ("json", "null"),
                ("json", "{}"),
            ]
        )
        return item

    def _text(self) -> str:
        return str(self._pick(SHORT if self._upto(3) else LONG))

    def _scalar(self) -> Any:
        return self._pick([self._text(), self._pick(NUMBERS), True, False, None, "1", "0.1"])

    def _tags(self) -> str:
        few = ["a", "b", "é", Decimal(1), Decimal(2), Decimal("1.0"), True, None, "1"]
        return self._json([self._pick([*few, self._scalar()]) for _ in range(self._upto(4))])

    def _json(self, value: Any) -> str:
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, list):
            return "[" + ", ".join(map(self._json, value)) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f'"{k}": {self._json(v)}' for k, v in value.items()) + "}"
        return json.dumps(value)

    def _predictions(self) -> list[Prediction] | None:
        return None if self._upto(6) == 0 else [self._prediction(n) for n in range(self._upto(4))]

    def _prediction(self, ordinal: int) -> Prediction:
        return Prediction(
            ordinal=ordinal,
            rank=ordinal + 1,
            output=self._upto(1),
            output_name=self._maybe(["out", "é"]),
            label=self._maybe(LABELS),
            score=self._maybe(SCORES),
            xmin=self._maybe([-1.5, 0.1, 10.0]),
            xmax=self._maybe([0.1, 20.25, 1e300]),
            area=self._maybe([0.0, 2.5]),
            text=self._maybe(["abc", "É", "a" * 600]),
            start=self._maybe([0, 3]),
            value=self._maybe(NUMBERS),
        )


def _other_extras(number: int) -> dict[str, Any]:
    """Return values by type for the fields that are not drawn: a new field is among them."""
    others = {name: kind for name, kind in _PROPERTIES.items() if name not in _DRAWN}
    return {name: _BY_TYPE[kind][number % 3] for name, kind in others.items()}


def derive_facts(inference: NewInference, project_id: str | None = None) -> Facts:
    forwarded, responded, published = inference.times
    items, extras = inference.predicted, inference.extras
    first = next((item for item in items or () if item.rank == 1), None)
    single = {
        "model_id": inference.model_id,
        "project_id": project_id,
        "inference_id": inference.inference_id,
        "uid": str(inference.uid),
        "received_at": inference.received_at,
        "forwarded_at": forwarded,
        "responded_at": responded,
        "published_at": published,
        "indexed_at": START,
        **{name: getattr(extras, name) for name in _PROPERTIES},
        "top_label": first.label if first else None,
        "top_score": first.score if first else None,
        "prediction_count": None if items is None else len(items),
        "problem": inference.read.problem,
        "request_problem": "over_cap" if FLAGS[0] in inference.flags else None,
        "response_problem": "not_json" if FLAGS[1] in inference.flags else None,
        "revision": 1,
    }
    properties: dict[str, tuple[Any, ...]]
    properties = {name: (value,) for name, value in single.items() if value is not None}
    properties["has_truth"] = (False,)  # nobody has said what is true of these
    properties["inference_ids"] = tuple({inference.inference_id, *inference.aliases})
    properties["pre_ms"] = milliseconds(inference.received_at, forwarded)
    properties["model_ms"] = milliseconds(forwarded, responded)
    properties["post_ms"] = milliseconds(responded, published)
    predictions = None if items is None else [item._asdict() for item in items]
    return Facts(properties, inference.read, predictions)
