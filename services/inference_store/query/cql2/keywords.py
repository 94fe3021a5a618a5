"""The reserved words of CQL2-Text."""

from typing import Final

KEYWORDS: Final = {
    word: word.upper()
    for word in ("or", "and", "not", "like", "between", "in", "is", "null", "true", "false", "div")
}
