"""Aggregates: counts, sums, percentiles, histograms of inferences that match, by groups.

Every statement adds up what lies in a few partitions of one model; Python merges the parts.
So nothing is counted twice, time can run out between two of them, and several models are no
other case than several partitions.
"""

from .run import aggregate as aggregate
from .run import build_targets as build_targets
