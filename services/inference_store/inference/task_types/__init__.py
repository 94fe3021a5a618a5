"""Task types: they turn a model's answer into predictions."""

from .mapping import Activation, BoxFormat, OutputMapping, Units
from .modzy import predictions_in
from .outlines import Outline, Outlines
from .prediction import Prediction, PredictionCaps, Predictions
from .response import read_outlines, read_predictions
from .table import TASK_TYPES, TaskType, task_type_named, task_type_of

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
