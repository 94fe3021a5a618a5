"""Parses seconds on the command line."""

import argparse
import math


def parse_seconds(text: str) -> float:
    """Parse a number of seconds. Raises ArgumentTypeError, which says how to write it."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        message = f"{text!r} is no number of seconds: write a plain number, such as 15"
        raise argparse.ArgumentTypeError(message)
    return seconds
