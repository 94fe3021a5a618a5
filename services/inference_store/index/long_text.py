"""Text in an index: whole up to 512 UTF-8 bytes, else a prefix and a hash.

A btree row holds 2,704 bytes. For a longer text the index has its first 448 bytes, cut at a
character, and the SHA-256 of the whole; the column `whole` has all of it. The mark between the two
makes every cut text longer than 512 bytes, so that it never equals a whole text.

Comparisons use the whole text. The functions here return bounds on the indexed text within which
all matches lie, so that the index finds the candidates.
"""

from hashlib import sha256

WHOLE_BYTES = 512
PREFIX_BYTES = 448
_MARK = "#sha256:"
# A cut text shares at least this many bytes with the whole: a character has up to four.
_SHARED_BYTES = PREFIX_BYTES - 3
_LAST = "\U0010ffff"
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000


def encode(text: str) -> tuple[str, str | None]:
    """Return the text to index, and the whole text if that is different."""
    encoded = text.encode("utf-8")
    if len(encoded) <= WHOLE_BYTES:
        return text, None
    return _cut(encoded, PREFIX_BYTES) + _MARK + sha256(encoded).hexdigest(), text


def lower_bound(text: str) -> str:
    """Return a bound: every text >= `text` is indexed at or above it."""
    return _cut(text.encode("utf-8"), _SHARED_BYTES)


def upper_bound(text: str) -> str | None:
    """Return a bound: every text <= `text` is indexed below it; None: there is no such bound."""
    shared = lower_bound(text)
    # No text lies between `text` and `text` followed by U+0001, for NUL cannot be stored.
    return text + "\x01" if shared == text else after(shared)


def prefix_bounds(prefix: str) -> tuple[str, str | None]:
    """Return [low, high), in which every text with this prefix is indexed; None: no such bound."""
    shared = lower_bound(prefix)
    return shared, after(shared)


def after(prefix: str) -> str | None:
    """Return the smallest text above all with this prefix; None: there is none."""
    shared = prefix.rstrip(_LAST)
    return shared[:-1] + chr(_next(ord(shared[-1]))) if shared else None


def _next(code_point: int) -> int:
    return _AFTER_SURROGATES if code_point == _BEFORE_SURROGATES else code_point + 1


def _cut(encoded: bytes, limit: int) -> str:
    return encoded[:limit].decode("utf-8", "ignore")
