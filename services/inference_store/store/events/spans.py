"""The text of a member of a JSON object, exactly as it was written."""

import json


def integer(digits: str) -> int | str:
    """A JSON integer; as its digits where Python would refuse to convert so many."""
    return int(digits) if len(digits) <= _MOST_DIGITS else digits


_MOST_DIGITS = 4000
_DECODER = json.JSONDecoder(parse_int=integer)
_BLANK = " \t\n\r"


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at


def member_texts(text: str) -> dict[str, str]:
    """Each top-level member's value, as it stands in `text`, which must be a JSON object.

    Raises ValueError or IndexError where it is not, RecursionError where it is too deep.
    """
    found: dict[str, str] = {}
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] != "}":
        name, at = _name(text, at)
        _, end = _DECODER.raw_decode(text, at)
        found[name] = text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _name(text: str, at: int) -> tuple[str, int]:
    """A member's name, and where its value begins."""
    name, end = _DECODER.raw_decode(text, at)
    return str(name), _skip(text, _skip(text, end) + 1)
