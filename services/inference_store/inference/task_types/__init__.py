"""Task types: how a model's answer becomes predictions."""

from .mapping import Activation, BoxFormat, OutputMapping, Units
from .modzy import predictions_in
from .prediction import Prediction, PredictionCaps, Predictions
from .response import read_predictions
from .table import TASK_TYPES, TaskType, task_type_named, task_type_of

__all__ = [
    "TASK_TYPES",
    "Activation",
    "BoxFormat",
    "OutputMapping",
    "Prediction",
    "PredictionCaps",
    "Predictions",
    "TaskType",
    "Units",
    "predictions_in",
    "read_predictions",
    "task_type_named",
    "task_type_of",
]
