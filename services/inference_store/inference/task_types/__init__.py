"""Task types: they turn a model's answer into predictions."""

from .response import Outline as Outline
from .response import Outlines as Outlines
from .response import OutputMapping as OutputMapping
from .response import Prediction as Prediction
from .response import PredictionCaps as PredictionCaps
from .response import Predictions as Predictions
from .response import predictions_in as predictions_in
from .table import TASK_TYPES as TASK_TYPES
from .table import TaskType as TaskType
from .table import read_outlines as read_outlines
from .table import read_predictions as read_predictions
from .table import task_type_named as task_type_named
from .table import task_type_of as task_type_of
