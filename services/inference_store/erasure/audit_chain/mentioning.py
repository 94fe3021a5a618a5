"""Whether what an entry of the audit, or a hold, says mentions a subject.

Its key and its value as whole words, wherever they stand: in filters, as text or as JSON, in
reasons, in lists. A value that is a number, a bool or a timestamp is found however it is spelt.
A value that is no common word or number is found without the key too, where it stands by itself.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

_NUMBER: Final = re.compile(r"(?<![\w.\-])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w\-]|\.\d)")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[-+]\d\d:?\d\d)?")
# What may not stand beside a word; and where it is no part of a longer name either.
_EDGE: Final = (r"(?<!\w)", r"(?!\w)")
_APART: Final = (r"(?<![\w\-@])(?<!\w[.:/])", r"(?![\w\-@]|[.:/]\w)")
_FEWEST_CHARACTERS: Final = 3
_FEWEST_DIGITS: Final = 5
_COMMON: Final = frozenset({"true", "false", "null", "none", "and", "not"})


def mentions(detail: Any, key: str, value: str) -> bool:
    """Whether `detail`, as JSON has it, mentions both, or a value that tells enough alone."""
    said = list(_scalars(detail))
    texts = [each for each in said if isinstance(each, str)]
    if any(_has_word(each, key) for each in texts) and any(_tells(each, value) for each in said):
        return True
    return _tells_alone(value) and any(
        _has_word(each, value, edge=_APART)
        for each in _scalars(detail, members=False)
        if isinstance(each, str)
    )


def _tells_alone(value: str) -> bool:
    """Not so bools, times, short numbers and single letters: they stand for much else."""
    if value.lower() in _COMMON or _time(value) is not None:
        return False
    return len(value) >= (_FEWEST_CHARACTERS if _number(value) is None else _FEWEST_DIGITS)


def _scalars(document: Any, *, members: bool = True) -> Iterator[Any]:
    """Every text, number and bool of it, names of `members` too; without recursion."""
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*(each if members else ()), *each.values()]
        elif isinstance(each, list):
            waiting += each
        elif each is not None:
            yield each
            waiting += _inside(each)


def _inside(each: Any) -> list[Any]:
    """What a text that is JSON itself holds, as a filter may be."""
    if isinstance(each, str) and each[:1] in ("{", "["):
        try:
            return [json.loads(each)]
        except (ValueError, RecursionError):
            return []
    return []


def _tells(said: Any, value: str) -> bool:
    if isinstance(said, bool):
        return value.lower() == str(said).lower()
    if isinstance(said, int | float):
        return _number(str(said)) == _number(value) is not None
    # a part of another number is not it
    found = _has_number if _number(value) is not None else _has_word
    return found(said, value) or _has_time(said, value)


def _has_word(text: str, word: str, *, edge: tuple[str, str] = _EDGE) -> bool:
    """As it is, or as CQL2 quotes it; a bool in any case."""
    fold = re.IGNORECASE if word.lower() in {"true", "false"} else 0
    found = re.compile(f"{edge[0]}{re.escape(word)}{edge[1]}", fold)
    forms = (text, text.replace("''", "'"), text.replace('""', '"'))
    return word == text or any(found.search(form) for form in forms)


def _has_number(text: str, value: str) -> bool:
    wanted = _number(value)
    return any(_number(each) == wanted for each in _NUMBER.findall(text))


def _has_time(text: str, value: str) -> bool:
    wanted = _time(value)
    return wanted is not None and any(_time(each) == wanted for each in _TIME.findall(text))


def _number(text: str) -> Decimal | None:
    try:
        found = Decimal(text)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
