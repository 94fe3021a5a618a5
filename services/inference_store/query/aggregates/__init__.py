"""Aggregates: counts, sums, percentiles, histograms of inferences that match, by groups.

Every statement adds up what lies in a few partitions of one model; Python merges the parts.
So nothing is counted twice, time can run out between two of them, and several models are no
other case than several partitions.
"""

from .aggregation import AGGREGATES as AGGREGATES
from .aggregation import Aggregation as Aggregation
from .aggregation import GroupBody as GroupBody
from .aggregation import MeasureBody as MeasureBody
from .answer import Aggregated as Aggregated
from .part_collector import Target as Target
from .run import aggregate as aggregate
