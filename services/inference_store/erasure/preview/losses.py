"""The counts and examples of what a policy would delete."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from inference_store.erasure.policies import ErasureScope, PolicyOwner

SCOPES: tuple[ErasureScope, ...] = ("inference", "response", "input")


@dataclass(frozen=True, slots=True)
class LossCount:
    """The number of inferences that lose this part."""

    count: int = 0
    bytes: int = 0
    """Of those whose size is known: all objects of an inference, the datum of an input."""
    unknown_sizes: int = 0
    """Under a limit by bytes, of all inferences: the answer is `partial` then."""
    held: int = 0
    """More of them, which legal holds keep."""
    oldest: datetime | None = None
    newest: datetime | None = None

    def __add__(self, other: "LossCount") -> "LossCount":
        oldest = [instant for instant in (self.oldest, other.oldest) if instant is not None]
        newest = [instant for instant in (self.newest, other.newest) if instant is not None]
        return LossCount(
            self.count + other.count,
            self.bytes + other.bytes,
            self.unknown_sizes + other.unknown_sizes,
            self.held + other.held,
            min(oldest, default=None),
            max(newest, default=None),
        )


@dataclass(frozen=True, slots=True)
class LossExample:
    """One of the oldest inferences that would lose a part, with the rule or the limit."""

    model_id: str
    uid: UUID
    inference_id: str
    received_at: datetime
    scope: ErasureScope
    of: PolicyOwner | None
    rule: int | None
    name: str | None


@dataclass(slots=True)
class Preview:
    """The counts and examples of what would be deleted."""

    parts: dict[ErasureScope, LossCount] = field(
        default_factory=lambda: {s: LossCount() for s in SCOPES}
    )
    fresh: int = 0
    """How many lose something that what is in force now would not take today."""
    examples: list[LossExample] = field(default_factory=list)
    exports: int = 0
    """Exports that name something that would be deleted."""
    cut: bool = False
    """The time was over before all was looked at."""
    unmeasured: int = 0
    """Inferences of an unknown size, whether they go or not, that a limit by bytes is over."""
    tightened: bool = False
    """The change makes a limit by bytes tighter that is over some of them."""
    waits: bool = False
    """Something goes that is not in these figures, once a change begins that waits still."""

    @property
    def partial(self) -> bool:
        """Check whether it may be more than these figures."""
        return self.cut or self.unmeasured > 0

    @property
    def is_harmless(self) -> bool:
        """Check whether it deletes nothing known that would not be deleted anyway."""
        return not (self.fresh or self.cut or self.tightened or self.waits)
