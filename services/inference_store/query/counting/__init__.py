"""Stored counts of partitions that are no longer written: a model's inferences, by key and label.

They stay valid without maintenance: a trigger on the partition's inferences notes any write since a
count was begun, in the writer's own transaction, and outdated counts are not read
(query/stored_counts.py). No process waits for another, and open partitions have no trigger.
"""

from .fill import Step, count_ended

__all__ = ["Step", "count_ended"]
