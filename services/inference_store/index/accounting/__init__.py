"""Offset accounting: each Kafka partition's next offset, and the outcome of every offset before it.

The next offset moves in the transaction that writes the rows, and only from where it was:
`UPDATE … SET next = :hi WHERE next = :lo`. If no row moves, another consumer has moved it.
"""

from .accounts import Account, list_accounts
from .former_producers import FORMER_AFTER, FormerProducers, find_former_producers, fold_producers
from .lag import LogEnd, MeasuredEnd, store_ends
from .offsets import (
    add_lost_offsets,
    change_outcomes,
    find_position,
    lock_at,
    lock_partitions,
    move_offsets,
    open_partition,
)
from .partition_id import ConsumerFenced, Outcome, PartitionId, Position
from .producer_account import STATES, ProducerAccount, StoredReport
from .producers import add_sequences, list_producers
from .reports import (
    ReceivedReport,
    count_producer_states,
    find_report_positions,
    mark_silent,
    store_reports,
)

__all__ = [
    "FORMER_AFTER",
    "STATES",
    "Account",
    "ConsumerFenced",
    "FormerProducers",
    "LogEnd",
    "MeasuredEnd",
    "Outcome",
    "PartitionId",
    "Position",
    "ProducerAccount",
    "ReceivedReport",
    "StoredReport",
    "add_lost_offsets",
    "add_sequences",
    "change_outcomes",
    "count_producer_states",
    "find_former_producers",
    "find_position",
    "find_report_positions",
    "fold_producers",
    "list_accounts",
    "list_producers",
    "lock_at",
    "lock_partitions",
    "mark_silent",
    "move_offsets",
    "open_partition",
    "store_ends",
    "store_reports",
]
