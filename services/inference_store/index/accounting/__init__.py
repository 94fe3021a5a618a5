"""Offset accounting: each Kafka partition's next offset, and the outcome of every offset before it.

The next offset moves in the transaction that writes the rows, and only from where it was:
`UPDATE … SET next = :hi WHERE next = :lo`. If no row moves, another consumer has moved it.
"""

from .offsets import Account as Account
from .offsets import ConsumerFenced as ConsumerFenced
from .offsets import LogEnd as LogEnd
from .offsets import Outcome as Outcome
from .offsets import PartitionId as PartitionId
from .offsets import add_lost_offsets as add_lost_offsets
from .offsets import change_outcomes as change_outcomes
from .offsets import find_position as find_position
from .offsets import list_accounts as list_accounts
from .offsets import lock_at as lock_at
from .offsets import lock_partitions as lock_partitions
from .offsets import move_offsets as move_offsets
from .offsets import open_partition as open_partition
from .offsets import store_ends as store_ends
from .producers import FORMER_AFTER as FORMER_AFTER
from .producers import STATES as STATES
from .producers import Captured as Captured
from .producers import ProducerAccount as ProducerAccount
from .producers import ReceivedReport as ReceivedReport
from .producers import add_sequences as add_sequences
from .producers import count_producer_states as count_producer_states
from .producers import find_former_producers as find_former_producers
from .producers import find_report_positions as find_report_positions
from .producers import fold_producers as fold_producers
from .producers import list_producers as list_producers
from .producers import mark_silent as mark_silent
from .producers import read_captured as read_captured
from .producers import store_reports as store_reports
