"""What the store remarks about a question, as Python warnings."""

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Final

_HEADER: Final = "inference-store-warnings"


class StoreWarning(UserWarning):
    """A remark of the store: the question is answered, and may not mean what was intended."""


def warn(texts: Iterable[str]) -> None:
    """Issue each text as a StoreWarning."""
    for text in texts:
        warnings.warn(text, StoreWarning, stacklevel=2)


def warn_of_header(headers: Mapping[str, str]) -> None:
    """Issue the warnings of an answer that has no room for them, such as CSV."""
    text = headers.get(_HEADER, "[]")
    try:
        texts = json.loads(text)
    except ValueError:  # something on the way has cut it
        texts = text
    warn(map(str, texts) if isinstance(texts, list) else [text])
