"""Folds texts that differ only in case, or only in accents, to the same text."""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Final

from .typed import Folding


def without_case(text: str) -> str:
    """Return the text with Unicode's full case folding: `Straße` and `STRASSE` are equal."""
    return text.casefold()


def without_accents(text: str) -> str:
    """Return a text without combining marks: decomposed (NFD), marks dropped, composed (NFC)."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFD", text)
    base = "".join(character for character in apart if unicodedata.category(character) != "Mn")
    return unicodedata.normalize("NFC", base)


FOLDINGS: Final[Mapping[Folding, Callable[[str], str]]] = {
    "casei": without_case,
    "accenti": without_accents,
}
