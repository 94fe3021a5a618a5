"""The result of verifying the chain of the audit."""

from dataclasses import dataclass, field

from inference_store.erasure.log.hash_chain import Link, VerificationFailure

MOST_FAILURES = 1_000


@dataclass(slots=True)
class Verdict:
    """The verified part of the chain, and the failures: of many the first thousand.

    `first`: the first number after what retention has cut; `end`: the last link that was read.
    """

    first: int
    end: Link
    linked: int = 0
    unlinked: int = 0
    redacted: int = 0
    checkpoints: int = 0
    signed: int = 0
    failures: list[VerificationFailure] = field(default_factory=list)

    def fail(self, number: int, reason: str) -> None:
        """Add a failure."""
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(VerificationFailure(number, reason))
