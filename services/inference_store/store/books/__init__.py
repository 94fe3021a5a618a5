"""The books: each Kafka partition's next offset, and what became of those before it.

The next offset moves in the transaction that writes the rows, and only from where it was:
`UPDATE … SET next = :hi WHERE next = :lo`. Where no row moves, another consumer was here.
"""

from .accounts import Account, accounts
from .offsets import begin, change, hold, lock, move, name_lost, position
from .place import Fenced, Outcome, Place, Position
from .producers import ProducerAccount, cover, producers

__all__ = [
    "Account",
    "Fenced",
    "Outcome",
    "Place",
    "Position",
    "ProducerAccount",
    "accounts",
    "begin",
    "change",
    "cover",
    "hold",
    "lock",
    "move",
    "name_lost",
    "position",
    "producers",
]
