"""Counts of partitions that are no longer written: how many inferences a model has there, with
which keys and labels.

They hold without being looked after: a trigger on the partition's inferences notes any write since
a count was begun, in the writer's own transaction, and what is outdated is not read
(query/stored.py). Nobody waits for anybody, and a partition that is written has no trigger.
"""

from .fill import Step, count_ended

__all__ = ["Step", "count_ended"]
