"""Datasets of pictures, written from a question: COCO, YOLO, and what else FORMATS lists."""

from .formats import FORMATS, DatasetFormat, find_format
from .summary import DROPPED, LEFT_OUT, REMARKS, DatasetSummary

__all__ = [
    "DROPPED",
    "FORMATS",
    "LEFT_OUT",
    "REMARKS",
    "DatasetFormat",
    "DatasetSummary",
    "find_format",
]
