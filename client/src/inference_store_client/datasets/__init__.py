"""Datasets of pictures, written from a question: COCO, YOLO, and what else FORMATS lists."""

from .formats import FORMATS as FORMATS
from .formats import DatasetFormat as DatasetFormat
from .formats import find_format as find_format
from .summary import DROPPED as DROPPED
from .summary import LEFT_OUT as LEFT_OUT
from .summary import REMARKS as REMARKS
from .summary import DatasetSummary as DatasetSummary
