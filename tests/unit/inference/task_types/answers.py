"""Short ways to write an answer down and to look at its predictions."""

import json
from typing import Any

from inference_store.inference.task_types import (
    OutputMapping,
    Prediction,
    PredictionCaps,
    Predictions,
    read_predictions,
    task_type_of,
)


def v2(data: Any, **output: Any) -> bytes:
    """A V2 answer with one output."""
    one = {"name": "o", "shape": [1], "datatype": "BYTES", "data": data, **output}
    return json.dumps({"id": "1", "model_name": "m", "outputs": [one]}).encode()


def tensors(**data: Any) -> bytes:
    """A V2 answer with one numeric output a name; shapes are never to be trusted."""
    outputs = [
        {"name": name, "shape": [1], "datatype": "FP32", "data": each}
        for name, each in data.items()
    ]
    return json.dumps({"outputs": outputs}).encode()


def read(
    task_type: str,
    response: bytes | None,
    *,
    labels: tuple[str, ...] = (),
    mapping: OutputMapping | None = None,
    size: tuple[int, int] | None = None,
    ok: bool | None = None,
    caps: PredictionCaps | None = None,
) -> Predictions:
    """The predictions of an answer."""
    width, height = size or (None, None)
    return read_predictions(
        response,
        task_type=task_type_of(task_type),
        class_labels=labels,
        output_mapping=mapping,
        width=width,
        height=height,
        ok=ok,
        caps=caps or PredictionCaps(),
    )


def items(found: Predictions) -> tuple[Prediction, ...]:
    """The predictions, which must be known."""
    assert found.items is not None, found
    return found.items


def columns(found: Predictions, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of each prediction."""
    return [tuple(getattr(item, name) for name in names) for item in items(found)]
