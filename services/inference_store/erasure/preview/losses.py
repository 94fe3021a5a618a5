"""The counts and examples of what a policy would delete."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from inference_store.erasure.policies import ErasureScope, PolicyOwner, PolicyVersion

SCOPES: tuple[ErasureScope, ...] = ("inference", "response", "input")


@dataclass(frozen=True, slots=True)
class LossCount:
    """The number of inferences that lose this part."""

    count: int = 0
    bytes: int = 0
    """Of their inputs, as far as sizes are known; of responses none is."""
    unknown_sizes: int = 0
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
    pending: list[PolicyVersion] = field(default_factory=list)
    """Other policies that are counted as if they had begun."""
    waits: bool = False
    """Something goes that is not in these figures, if a pending change begins or is revoked."""

    @property
    def is_harmless(self) -> bool:
        """Check whether it deletes nothing known that would not be deleted anyway."""
        return not (self.fresh or self.cut or self.waits)
