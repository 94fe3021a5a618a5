"""The content of the console in the tests: models of every task, and planted texts."""

import hashlib
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from tests.producer import START, Capture, capture

from .pictures import HEIGHT, WIDTH, make_png

STREET = "street-detector"
STREETS = 130
"""More than a page of the console."""
SMALL = "small-detector"
"""A model that saw the first ten pictures of `STREET`, and took one person for a car."""
COMPARED = 10
PLANTED = [
    "<img src=x onerror=\"document.title='planted'\">",
    "</script><script>document.title='planted'</script>",
    "{@html '<b>bold</b>'}",
    "\u202egnp.exe",
    "a\u0000b",
    "' OR 1=1 --",
    "long " * 20_000,
]
SQUARE = [{"x": 20, "y": 20}, {"x": 120, "y": 20}, {"x": 120, "y": 140}, {"x": 20, "y": 140}]
MESSAGES = {"messages": [{"role": "user", "content": "How tall is the tower?"}]}
_TYPES: dict[type, str] = {bytes: "image/png", dict: "application/json", str: "text/plain"}


def encode(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    return content.encode() if isinstance(content, str) else json.dumps(content).encode()


def list_captures() -> list[Capture]:
    """Return all captures, the oldest first."""
    numbered_values = enumerate(
        [*_list_streets(), *_list_small_streets(), *_list_tasks(), *_list_planted()]
    )
    return [_make_capture(number, **values) for number, values in numbered_values]


def _make_capture(number: int, model: str, task: str, content: Any, **more: Any) -> Capture:
    extras = {"task_type": task, "data_content_type": _TYPES[type(content)], "ok": True}
    if isinstance(content, bytes):
        extras |= {"width": WIDTH, "height": HEIGHT}
    default = capture(number)
    return Capture(
        number,
        model_id=model,
        data=encode(content),
        metadata=more.get("metadata", default.metadata),
        predictions=more["predictions"],
        extras=extras | more.get("extras", {}),
        inference_id=more.get("inference_id", f"{model}-{number:04d}"),
        received_at=START + timedelta(seconds=number),
    )


def _list_streets() -> Iterator[dict[str, Any]]:
    for number in range(STREETS):
        box = {"xmin": 32, "ymin": 24, "xmax": 96, "ymax": 120}
        predictions = [{"label": "person", "score": (number % 100) / 100, **box}]
        if number % 3 == 0:
            predictions.append({"label": "car", "score": 0.5, **box | {"xmin": 160, "xmax": 288}})
        yield {
            "model": STREET,
            "task": "Object Detection",
            "content": make_png(number),
            "predictions": predictions,
            "extras": _hash_picture(number),
        }


def _hash_picture(number: int) -> dict[str, Any]:
    return {"data_hash": hashlib.sha256(make_png(number)).hexdigest()}


def _list_small_streets() -> Iterator[dict[str, Any]]:
    for number in range(COMPARED):
        label = "car" if number == COMPARED - 1 else "person"
        box = {"xmin": 32, "ymin": 24, "xmax": 96, "ymax": 120}
        yield {
            "model": SMALL,
            "task": "Object Detection",
            "content": make_png(number),
            "predictions": [{"label": label, "score": 0.9, **box}],
            "metadata": [
                {"key": "longitude", "type": "float", "value": str(13.4 + number / 100)},
                {"key": "latitude", "type": "float", "value": str(52.5 + number / 100)},
            ],
            "extras": _hash_picture(number),
        }


def _list_tasks() -> Iterator[dict[str, Any]]:
    picture = make_png(90)
    turned = {"cx": 0.5, "cy": 0.5, "w": 0.25, "h": 0.5, "r": 0.5}
    scores = [{"label": "cat", "score": 0.75}, {"label": "dog", "score": 0.25}]
    yield from (
        {"model": name, "task": task, "content": content, "predictions": predictions}
        for name, task, content, predictions in [
            ("pets", "Image Classification", picture, scores),
            (
                "ships",
                "Oriented Object Detection",
                picture,
                [{"label": "ship", "score": 0.9, **turned}],
            ),
            (
                "cells",
                "Image Segmentation",
                picture,
                [{"label": "cell", "score": 0.8, "contour": [SQUARE]}],
            ),
            ("writer", "Text Generation", MESSAGES, [{"generated_text": "It is 324 m tall."}]),
            ("reviews", "Text Classification", "What a film!", [{"label": "good", "score": 0.9}]),
            (
                "captions",
                "Image-Text-to-Text",
                picture,
                [{"prompt": "What is it?", "answer": "A grey wall."}],
            ),
            ("odd", "unknown", {"a": 1}, [{"anything": True}]),
        ]
    )


def _list_planted() -> Iterator[dict[str, Any]]:
    for number, text in enumerate(PLANTED):
        without_nul, short = text.replace("\0", ""), text[:60].replace("\0", "")
        box = {"xmin": 1, "ymin": 2, "xmax": 11, "ymax": 22}
        yield {
            "model": "planted",
            "task": "Object Detection",
            "content": make_png(number),
            "predictions": [{"label": text[:200], "score": 0.5, **box}],
            "metadata": [
                {"key": f"key {short}", "type": "string", "value": text},
                {"key": "note", "type": "string", "value": text},
            ],
            "inference_id": f"{without_nul[:100]} {number}",
            "extras": {"ok": number % 2 == 0, "error": None if number % 2 == 0 else short},
        }
