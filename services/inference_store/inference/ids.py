"""What may be the id of a model, a project or an inference."""

from typing import Final

from .json_text import storable

MOST_CHARACTERS: Final = 256
_RELATIVE: Final = frozenset({".", ".."})


def is_id(text: str) -> bool:
    """Return whether a text may be an id.

    Browsers and proxies resolve `.` and `..` in a path, escaped or not: a request about the model
    `..` would be about all models.
    """
    return 0 < len(text) <= MOST_CHARACTERS and storable(text) and text not in _RELATIVE


def check_id(text: str) -> str:
    """Return an id as it is. Raises ValueError, which says what an id may be."""
    if not is_id(text):
        raise ValueError(
            f"an id has 1 to {MOST_CHARACTERS} characters, without NUL or half characters, and is"
            " not `.` or `..`"
        )
    return text
