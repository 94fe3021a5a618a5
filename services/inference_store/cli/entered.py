"""Parses what is entered on the command line; each refusal says how to write it."""

import argparse
from typing import Final

from .seconds import parse_seconds

_MOST_NAME_CHARACTERS: Final = 256


def parse_positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0. Raises ArgumentTypeError."""
    if (seconds := parse_seconds(text)) == 0:
        raise argparse.ArgumentTypeError("0 seconds are no time: write more than 0, such as 15")
    return seconds


def parse_number(text: str) -> int:
    """Parse the number of an entry, 0 or more. Raises ArgumentTypeError."""
    return _parse_whole(text, least=0)


def parse_limit(text: str) -> int:
    """Parse how many are wanted, 1 or more. Raises ArgumentTypeError."""
    return _parse_whole(text, least=1)


def parse_name(text: str) -> str:
    """Return a name for people: 1 to 256 characters. Raises ArgumentTypeError."""
    if not 0 < len(text.strip()) <= len(text) <= _MOST_NAME_CHARACTERS:
        message = f"a name has 1 to {_MOST_NAME_CHARACTERS} characters, such as 'hallway dashboard'"
        raise argparse.ArgumentTypeError(message)
    return text


def _parse_whole(text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < least:
        message = f"{text!r} is not {least} or more: write a whole number, such as 100"
        raise argparse.ArgumentTypeError(message)
    return int(text)
