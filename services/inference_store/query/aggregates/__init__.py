"""Aggregates: counts, sums, percentiles, histograms of inferences that match, by groups.

Every statement adds up what lies in a few partitions of one model; Python merges the parts.
So nothing is counted twice, time can run out between two of them, and several models are no
other case than several partitions.
"""

from .aggregation import AGGREGATES as AGGREGATES
from .aggregation import Aggregation as Aggregation
from .aggregation import ByHistogram as ByHistogram
from .aggregation import ByLabel as ByLabel
from .aggregation import ByName as ByName
from .aggregation import ByTime as ByTime
from .aggregation import Grouping as Grouping
from .aggregation import Measure as Measure
from .aggregation import Name as Name
from .run import aggregate as aggregate
from .run import build_targets as build_targets
