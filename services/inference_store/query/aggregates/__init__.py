"""Aggregates: counts, sums, percentiles, histograms of inferences that match, by groups.

Every statement adds up what lies in a few partitions of one model; Python merges the parts.
So nothing is counted twice, time can run out between two of them, and several models are no
other case than several partitions.
"""

from .aggregation import (
    AGGREGATES,
    Aggregation,
    ByHistogram,
    ByLabel,
    ByName,
    ByTime,
    Grouping,
    Measure,
    Name,
)
from .run import aggregate, build_targets

__all__ = [
    "AGGREGATES",
    "Aggregation",
    "ByHistogram",
    "ByLabel",
    "ByName",
    "ByTime",
    "Grouping",
    "Measure",
    "Name",
    "aggregate",
    "build_targets",
]
