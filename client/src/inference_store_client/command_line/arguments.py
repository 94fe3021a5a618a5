"""The arguments that several commands have, and what they become."""

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from inference_store_client.errors import SettingsError
from inference_store_client.question import NEWEST_FIRST, Question
from inference_store_client.requests import make_path
from inference_store_client.settings import DEFAULT_RETRIES, Retries
from inference_store_client.sync import Store
from inference_store_client.times import read_time

IMPATIENT: Final = Retries(attempts=3, at_first_contact=False)
"""Somebody waits for the answer, and perhaps the address is wrong."""
REFUSE: Final = "refuse"


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add where the store is, and the key."""
    group = parser.add_argument_group("the store")
    add_url(group)
    group.add_argument(
        "--key",
        help="the key or token; other users of this machine can see it: prefer INFERENCE_STORE_KEY,"
        " the config file, or `istore login`",
    )


def add_url(parser: argparse._ActionsContainer) -> None:
    """Add where the store is."""
    parser.add_argument(
        "--url", help="its address (else INFERENCE_STORE_URL, else the config file)"
    )


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add the model, and which of its inferences."""
    parser.add_argument("model", help="the id of the model")
    add_filter(parser)
    add_window(parser)
    parser.add_argument(
        "--unknown-keys",
        choices=(REFUSE, "empty"),
        default=REFUSE,
        help="a metadata key that no inference has, in a filter or as a column, is an error, or"
        " empty (default: %(default)s)",
    )


def add_window(parser: argparse.ArgumentParser) -> None:
    """Add when they were received."""
    parser.add_argument(
        "--since",
        type=parse_time,
        metavar="TIME",
        help="received at or after it: 2026-11-01, 2026-11-01T12:00:00Z, or 30m, 12h, 7d ago",
    )
    parser.add_argument(
        "--until", type=parse_time, metavar="TIME", help="received before it; as --since"
    )


def add_filter(parser: argparse._ActionsContainer) -> None:
    """Add the filter."""
    parser.add_argument(
        "--filter", metavar="CQL2", help="such as: \"frame_number > 9000 AND top_label = 'person'\""
    )


def add_ids(parser: argparse._ActionsContainer) -> None:
    """Add ids in place of a filter."""
    parser.add_argument(
        "--id", action="append", dest="ids", help="the id of an inference; may be repeated"
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the columns."""
    parser.add_argument(
        "--columns",
        type=parse_names,
        metavar="NAMES",
        help="by commas: inference_id,top_score,metadata.frame_number,predictions.label",
    )


def parse_names(text: str) -> list[str]:
    """Return names that were given by commas."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("it names no column")
    return names


def parse_size(text: str) -> int:
    """Return a number of at least 1."""
    if not (text.isdecimal() and text.isascii() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def parse_time(text: str) -> datetime:
    """Return an instant: a date, RFC 3339, or how long ago."""
    try:
        return read_time(text)
    except SettingsError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def open_store(options: argparse.Namespace, retries: Retries = DEFAULT_RETRIES) -> Store:
    """Return the store that the arguments name; it is closed by who asked for it."""
    return Store(options.url, options.key, retries=retries)


def make_question(
    options: argparse.Namespace, columns: Sequence[str] | None = None, *, sort: str = NEWEST_FIRST
) -> Question:
    """Return the question of the arguments; `columns` None: all of an inference."""
    return Question(
        path=make_path("models", options.model, "inferences"),
        filter=options.filter,
        since=options.since,
        until=options.until,
        unknown_keys=options.unknown_keys,
        sort=sort,
        fields=columns,
    )
