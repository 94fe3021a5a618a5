"""Text in an index: whole up to 512 UTF-8 bytes, else a prefix and a hash.

A btree row holds 2,704 bytes. Of a longer text the index has its first 448 bytes, cut at a
character, and the SHA-256 of the whole; `whole` beside it has all of it. The mark between
the two makes every cut text longer than 512 bytes, so it never equals a text that is whole.

Comparisons are made on the whole text. The functions here give bounds on the indexed text
that no match lies outside of, so that the index finds the candidates.
"""

from hashlib import sha256

WHOLE_BYTES = 512
PREFIX_BYTES = 448
_MARK = "#sha256:"
# A cut text begins with at least so many bytes of its whole: a character has up to four.
_SHARED_BYTES = PREFIX_BYTES - 3
_LAST = "\U0010ffff"
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000


def encode(text: str) -> tuple[str, str | None]:
    """The text to index, and the whole text where that is not the same."""
    encoded = text.encode("utf-8")
    if len(encoded) <= WHOLE_BYTES:
        return text, None
    return _cut(encoded, PREFIX_BYTES) + _MARK + sha256(encoded).hexdigest(), text


def lower_bound(text: str) -> str:
    """Every text >= `text` is indexed at or above this."""
    return _cut(text.encode("utf-8"), _SHARED_BYTES)


def upper_bound(text: str) -> str | None:
    """Every text <= `text` is indexed below this; None: there is no such bound."""
    shared = lower_bound(text)
    # No text lies between `text` and `text` followed by U+0001, for NUL cannot be stored.
    return text + "\x01" if shared == text else after(shared)


def prefix_bounds(prefix: str) -> tuple[str, str | None]:
    """Every text that begins with `prefix` is indexed in [low, high); None: no such bound."""
    shared = lower_bound(prefix)
    return shared, after(shared)


def after(prefix: str) -> str | None:
    """The smallest text above all that begin with `prefix`; None: there is none."""
    kept = prefix.rstrip(_LAST)
    return kept[:-1] + chr(_next(ord(kept[-1]))) if kept else None


def _next(code_point: int) -> int:
    return _AFTER_SURROGATES if code_point == _BEFORE_SURROGATES else code_point + 1


def _cut(encoded: bytes, limit: int) -> str:
    return encoded[:limit].decode("utf-8", "ignore")
