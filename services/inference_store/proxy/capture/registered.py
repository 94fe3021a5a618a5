"""What the api has registered of a model, as far as reading its requests needs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registration."""

    task_type: str | None = None
    batched: bool = False
    """The output mapping says so."""


NOT_REGISTERED: Final = Registered()
Registry: TypeAlias = Callable[[str], Registered | None]
"""By model id; None: not registered, or not known yet."""


def no_registry(_: str) -> Registered | None:
    """Nothing is known of any model."""
    return None


NO_REGISTRY: Final[Registry] = no_registry
