"""The registration of a model, as far as reading its requests needs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """A registration."""

    task_type: str | None = None
    batched: bool = False
    """True if the output mapping says so."""


NOT_REGISTERED: Final = RegisteredModel()
Registry: TypeAlias = Callable[[str], RegisteredModel | None]
"""Returns a registration by model id; None if the model is not registered, or not known yet."""


def find_nothing(_: str) -> RegisteredModel | None:
    """Return None: no model is known."""
    return None


NO_REGISTRY: Final[Registry] = find_nothing
