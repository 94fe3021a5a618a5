"""Texts made alike where only the case of letters, or only accents, tell them apart."""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Final

from .typed import Folding


def without_case(text: str) -> str:
    """Unicode's full case folding: `Straße` and `STRASSE` are one."""
    return text.casefold()


def without_accents(text: str) -> str:
    """Without combining marks: taken apart (NFD), the marks dropped, put together (NFC)."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFD", text)
    kept = "".join(each for each in apart if unicodedata.category(each) != "Mn")
    return unicodedata.normalize("NFC", kept)


FOLDINGS: Final[Mapping[Folding, Callable[[str], str]]] = {
    "casei": without_case,
    "accenti": without_accents,
}
