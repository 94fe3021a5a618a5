"""Aggregates: counts, sums, percentiles, histograms of inferences that match, by groups.

Every statement adds up what lies in a few partitions of one model; Python merges the parts.
So nothing is counted twice, time can run out between two of them, and several models are no
other case than several partitions.
"""

from .answer import Aggregated
from .asked import (
    Aggregation,
    ByHistogram,
    ByLabel,
    ByName,
    ByTime,
    Grouping,
    Measure,
    Name,
)
from .choose import targets
from .functions import AGGREGATES, Aggregate
from .run import aggregate

__all__ = [
    "AGGREGATES",
    "Aggregate",
    "Aggregated",
    "Aggregation",
    "ByHistogram",
    "ByLabel",
    "ByName",
    "ByTime",
    "Grouping",
    "Measure",
    "Name",
    "aggregate",
    "targets",
]
