"""The books: each Kafka partition's next offset, and what became of those before it.

The next offset moves in the transaction that writes the rows, and only from where it was:
`UPDATE … SET next = :hi WHERE next = :lo`. Where no row moves, another consumer was here.
"""

from .accounts import Account, accounts
from .former_producers import KEPT, FormerProducers, fold, former
from .offsets import begin, change, hold, lock, move, name_lost, position
from .place import Fenced, Outcome, Place, Position
from .producer_account import STATES, KeptReport, ProducerAccount
from .producers import cover, producers
from .reports import ReadReport, keep, mark_silent, read_until, states

__all__ = [
    "KEPT",
    "STATES",
    "Account",
    "Fenced",
    "FormerProducers",
    "KeptReport",
    "Outcome",
    "Place",
    "Position",
    "ProducerAccount",
    "ReadReport",
    "accounts",
    "begin",
    "change",
    "cover",
    "fold",
    "former",
    "hold",
    "keep",
    "lock",
    "mark_silent",
    "move",
    "name_lost",
    "position",
    "producers",
    "read_until",
    "states",
]
