"""Finds out whether an entry of the audit, or a hold, mentions a subject.

It looks for the key and the value as whole words: in filters, as text or as JSON, in reasons, in
lists; case, accents and spaces do not count. A value that is a number, a bool or a timestamp is
recognised in any spelling. A value that is no common word or number is also recognised without the
key, if it stands by itself.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

_NUMBER: Final = re.compile(r"(?<![\w.\-])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w\-]|\.\d)")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[-+]\d\d:?\d\d)?")
# What may not stand beside a word; and, for a word that is no part of a longer name.
_EDGE: Final = (r"(?<!\w)", r"(?!\w)")
_APART: Final = (r"(?<![\w\-@])(?<!\w[.:/])", r"(?![\w\-@]|[.:/]\w)")
_FEWEST_CHARACTERS: Final = 3
_FEWEST_DIGITS: Final = 5
_COMMON: Final = frozenset({"true", "false", "null", "none", "and", "not"})


def mentions(detail: Any, key: str, value: str) -> bool:
    """Return whether `detail`, a JSON value, mentions both, or a value that identifies alone."""
    scalars = list(_iterate_scalars(detail))
    texts = [scalar for scalar in scalars if isinstance(scalar, str)]
    if any(_has_word(text, key) for text in texts) and any(
        _matches(scalar, value) for scalar in scalars
    ):
        return True
    return _is_identifying(value) and any(
        _has_word(scalar, value, edge=_APART)
        for scalar in _iterate_scalars(detail, members=False)
        if isinstance(scalar, str)
    )


def _is_identifying(value: str) -> bool:
    """Return False for bools, times, short numbers and short words: they mean many other things
    too."""
    if value.lower() in _COMMON or _parse_time(value) is not None:
        return False
    return len(value) >= (_FEWEST_CHARACTERS if _parse_number(value) is None else _FEWEST_DIGITS)


def _iterate_scalars(document: Any, *, members: bool = True) -> Iterator[Any]:
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting += [*(node if members else ()), *node.values()]
        elif isinstance(node, list):
            waiting += node
        elif node is not None:
            yield node
            waiting += _parse_nested(node)


def _parse_nested(scalar: Any) -> list[Any]:
    if isinstance(scalar, str) and scalar[:1] in ("{", "["):
        try:
            return [json.loads(scalar)]
        except (ValueError, RecursionError):
            return []
    return []


def _matches(scalar: Any, value: str) -> bool:
    if isinstance(scalar, bool):
        return value.lower() == str(scalar).lower()
    if isinstance(scalar, int | float):
        return _parse_number(str(scalar)) == _parse_number(value) is not None
    # a part of another number is not it
    is_in = _has_number if _parse_number(value) is not None else _has_word
    return is_in(scalar, value) or _has_time(scalar, value)


def _has_word(text: str, word: str, *, edge: tuple[str, str] = _EDGE) -> bool:
    text, word = _fold(text), _fold(word)
    pattern = re.compile(f"{edge[0]}{re.escape(word)}{edge[1]}")
    forms = (text, text.replace("''", "'"), text.replace('""', '"'))
    return word == text or any(pattern.search(form) for form in forms)


def _fold(text: str) -> str:
    """Return a text without case, accents, forms of Unicode and doubled spaces: people write a
    name in many ways."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return " ".join(text.casefold().split())


def _has_number(text: str, value: str) -> bool:
    number = _parse_number(value)
    return any(_parse_number(match) == number for match in _NUMBER.findall(text))


def _has_time(text: str, value: str) -> bool:
    time = _parse_time(value)
    return time is not None and any(_parse_time(match) == time for match in _TIME.findall(text))


def _parse_number(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _parse_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
