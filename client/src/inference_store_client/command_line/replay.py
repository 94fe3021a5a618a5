"""`istore replay`: sends stored requests to a model again, and shows what the answers differ in."""

import argparse
import sys
from itertools import islice
from typing import Any, Final

from inference_store_client.json_text import write_count
from inference_store_client.sync import Replay

from .arguments import add_filter, add_store, add_window, open_store, parse_size
from .ending import say
from .main import Command
from .printing import add_format, print_items

_COLUMNS: Final = ("uid", "to_uid", "disagreement", "before", "after", "boxes_lost", "boxes_new")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", help="the id of the model whose inferences are sent")
    parser.add_argument("--to", required=True, metavar="MODEL", help="the model that answers")
    parser.add_argument("--version", help="its version")
    add_filter(parser)
    add_window(parser)
    parser.add_argument("--sample", type=float, metavar="SHARE", help="this share of the matches")
    parser.add_argument("--most", type=parse_size, help="at most so many; default: 1000")
    parser.add_argument("--rate", type=float, help="calls a second; default: 5")
    parser.add_argument(
        "--limit", type=parse_size, default=20, help="show so many differences (%(default)s)"
    )
    add_format(parser)
    add_store(parser)


def run_replay(options: argparse.Namespace) -> int:
    """Request it, wait, and show the differences."""
    with open_store(options) as store:
        replay = store.model(options.model).replay(
            options.filter,
            to=options.to,
            version=options.version,
            since=options.since,
            until=options.until,
            sample=options.sample,
            most=options.most,
            rate=options.rate,
        )
        try:
            done = replay.wait(_show_progress if sys.stderr.isatty() else None)
        except BaseException as error:
            error.add_note(f"Replay {replay.id} stays in the store, which goes on with it.")
            raise
        first = islice(done.differences(), options.limit)
        rows = [_make_row(item.difference, item) for item in first if item.disagreement]
    print_items(rows, _COLUMNS, options)
    say(_describe(done))
    return 0


def _show_progress(replay: Replay) -> None:
    why = f": {replay.error}" if replay.error else ""
    say(f"{replay.state}, {replay.settled:,} of {replay.inferences:,}{why}")


def _make_row(difference: Any, item: Any) -> dict[str, Any]:
    label, boxes = difference["label"], difference["boxes"] or {}
    return {
        "uid": str(item.uid),
        "to_uid": str(item.to_uid),
        "disagreement": item.disagreement,
        "before": label["before"],
        "after": label["after"],
        "boxes_lost": boxes.get("lost"),
        "boxes_new": boxes.get("new"),
    }


def _describe(replay: Replay) -> str:
    counts, summary = replay.counts, replay.summary
    parts = [
        f"{summary['disagreeing']:,} of {counts['compared']:,} disagree",
        f"{write_count(summary['flips'], 'label')} flipped",
    ]
    reasons = ", ".join(f"{name}: {number:,}" for name, number in counts["reasons"].items())
    parts += [f"not sent: {counts['skipped']:,} ({reasons})"] if counts["skipped"] else []
    parts += [f"not captured in time: {counts['missing']:,}"] if counts["missing"] else []
    parts += [f"other version answered: {summary['versions']:,}"] if summary["versions"] else []
    return f"Replay {replay.id}: {'; '.join(parts)}."


REPLAY: Final = Command(add_arguments, run_replay)
