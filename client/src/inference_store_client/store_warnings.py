"""What the store remarks about a question, as Python warnings."""

import warnings
from collections.abc import Iterable


class StoreWarning(UserWarning):
    """A remark of the store: the question is answered, and may not mean what was intended."""


def warn(texts: Iterable[str]) -> None:
    """Issue each text as a StoreWarning."""
    for text in texts:
        warnings.warn(text, StoreWarning, stacklevel=2)
