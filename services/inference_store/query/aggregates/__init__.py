"""Aggregates: counts, sums, percentiles, histograms of inferences that match, by groups.

Every statement adds up what lies in a few partitions; Python merges the parts. So nothing is
counted twice, and time can run out between two of them.
"""

from .aggregation import AGGREGATES as AGGREGATES
from .aggregation import Aggregation as Aggregation
from .aggregation import GroupBody as GroupBody
from .aggregation import MeasureBody as MeasureBody
from .answer import Aggregated as Aggregated
from .run import aggregate as aggregate
