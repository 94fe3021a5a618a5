"""Short ways to write an answer down and to look at its predictions."""

import json
from typing import Any

from inference_store.inference import task_types


def make_v2(data: Any, **output: Any) -> bytes:
    """A V2 answer with one output."""
    tensor = {"name": "o", "shape": [1], "datatype": "BYTES", "data": data, **output}
    return json.dumps({"id": "1", "model_name": "m", "outputs": [tensor]}).encode()


def make_tensors(**data: Any) -> bytes:
    """A V2 answer with one numeric output a name; shapes are never to be trusted."""
    outputs = [
        {"name": name, "shape": [1], "datatype": "FP32", "data": values}
        for name, values in data.items()
    ]
    return json.dumps({"outputs": outputs}).encode()


def read(
    task_type: str,
    response: bytes | None,
    *,
    labels: tuple[str, ...] = (),
    mapping: task_types.OutputMapping | None = None,
    size: tuple[int, int] | None = None,
    ok: bool | None = None,
    caps: task_types.PredictionCaps | None = None,
) -> task_types.Predictions:
    width, height = size or (None, None)
    return task_types.read_predictions(
        response,
        task_type=task_types.task_type_of(task_type),
        class_labels=labels,
        output_mapping=mapping,
        width=width,
        height=height,
        ok=ok,
        caps=caps or task_types.PredictionCaps(),
    )


def find_items(predictions: task_types.Predictions) -> tuple[task_types.Prediction, ...]:
    """The predictions, which must be known."""
    assert predictions.items is not None, predictions
    return predictions.items


def list_columns(predictions: task_types.Predictions, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(item, name) for name in names) for item in find_items(predictions)]
