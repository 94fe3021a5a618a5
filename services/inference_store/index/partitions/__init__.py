"""The time partitions of the tables, and their life.

A partition is created before its first event is written, under an advisory lock and in a
transaction of its own: a crash leaves an empty partition. Widths adapt to the rows of the last
partitions, so that one holds about `target` inferences; old times get wide partitions.
"""

from .creation import AHEAD, TARGET, create, make_ahead, make_missing
from .locks import lock_catalogue, share
from .merge import merge
from .removal import drop
from .statistics import analyse
from .time_partition import TimePartition, TimePartitions, list_partitions
from .vacuum import tune_vacuum, vacuum

__all__ = [
    "AHEAD",
    "TARGET",
    "TimePartition",
    "TimePartitions",
    "analyse",
    "create",
    "drop",
    "list_partitions",
    "lock_catalogue",
    "make_ahead",
    "make_missing",
    "merge",
    "share",
    "tune_vacuum",
    "vacuum",
]
