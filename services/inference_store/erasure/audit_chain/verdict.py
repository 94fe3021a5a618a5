"""What was found of the chain over the audit."""

from dataclasses import dataclass, field

from .hashes import GENESIS

MOST_FAULTS = 1_000


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and at which place in the chain."""

    number: int
    sentence: str


@dataclass(slots=True)
class Verdict:
    """What was looked at and what is wrong; of many faults the first thousand are told."""

    first: int
    head: int = 0
    head_hash: bytes = GENESIS
    linked: int = 0
    unlinked: int = 0
    taken: int = 0
    checkpoints: int = 0
    signed: int = 0
    faults: list[Fault] = field(default_factory=list)

    def wrong(self, number: int, sentence: str) -> None:
        """Tell a fault."""
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(number, sentence))
