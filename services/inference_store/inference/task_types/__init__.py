"""Task types: they turn a model's answer into predictions."""

from inference_store.inference.task_types.response import (
    Activation,
    BoxFormat,
    Outline,
    Outlines,
    OutputMapping,
    Prediction,
    PredictionCaps,
    Predictions,
    Units,
    predictions_in,
)
from inference_store.inference.task_types.table import (
    TASK_TYPES,
    TaskType,
    read_outlines,
    read_predictions,
    task_type_named,
    task_type_of,
)

__all__ = [
    "TASK_TYPES",
    "Activation",
    "BoxFormat",
    "Outline",
    "Outlines",
    "OutputMapping",
    "Prediction",
    "PredictionCaps",
    "Predictions",
    "TaskType",
    "Units",
    "predictions_in",
    "read_outlines",
    "read_predictions",
    "task_type_named",
    "task_type_of",
]
