"""`istore drift`: how two windows of a model's inferences differ."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from inference_store_client.reading import fetch_plain, make_drift_request
from inference_store_client.times import read_time
from inference_store_client.transport import run

from .arguments import IMPATIENT, add_conditions, add_store, make_question, open_store, parse_time
from .ending import say
from .main import Command
from .printing import LINES, add_format, is_table, print_items, write_line

_COLUMNS: Final = ("drift", "effect", "name", "reference", "current", "n", "p", "psi", "critical")


def _add(parser: argparse.ArgumentParser) -> None:
    add_conditions(parser)
    parser.add_argument(
        "--reference",
        type=parse_time,
        metavar="TIME",
        help="compare with what was received from then until --since (default: a week before it);"
        " --since is 24h ago by default",
    )
    parser.add_argument(
        "--against", metavar="CQL2", help="compare with these of the same time, instead of earlier"
    )
    parser.add_argument(
        "--of",
        action="append",
        metavar="NAME",
        help="compare this, such as a metadata key or `label`; may be repeated (default: all)",
    )
    parser.add_argument("--level", type=float, help="how likely a false alarm is (default: 0.05)")
    parser.add_argument(
        "--json", dest="format", action="store_const", const=LINES, help="as --format jsonl"
    )
    add_format(parser)
    add_store(parser)


def _show(options: argparse.Namespace) -> int:
    since = options.since = options.since or read_time("24h")
    current, begin = make_question(options), options.reference or since - timedelta(days=7)
    reference = replace(current, since=begin, until=since)
    if options.against is not None:
        reference = replace(current, filter=options.against)
    more = {"of": options.of, "level": options.level}
    with open_store(options, IMPATIENT) as store:
        answer: Any = run(
            fetch_plain(store._transport, make_drift_request(reference, current, more))
        )
    if not is_table(options):
        print(write_line(answer))
        return 0
    for name in ("reference", "current"):
        window = answer[name]
        few = window["sampled"] < window["inferences"]
        sample = f" ({window['sampled']:,} sampled)" if few else ""
        print(f"{name:<10} {window['inferences']:>9,} inferences{sample}  {window['filter']}")
    print_items([*map(_describe, answer["rows"])], _COLUMNS, options)
    found, tested = sum(row["drifted"] for row in answer["rows"]), answer["comparisons"]
    few = "Nothing was tested: a window needs 100 inferences."
    print(f"{found} of {tested} drifted, at a level of {answer['level']:g}." if tested else few)
    for warning in answer["warnings"]:
        say(warning)
    return 0


def _describe(row: Mapping[str, Any]) -> Mapping[str, str]:
    sides = row["reference"], row["current"]
    cells = [
        f"{side['mean']:,.4g}" if side["mean"] is not None else f"{side['share']:.1%}"
        for side in sides
        if side["mean"] is not None or side["share"] is not None
    ]
    chance = row["p_adjusted"]
    numbers = {"psi": row["psi"], "critical": row["psi_critical"]}
    return {
        "drift": "too few" if row["too_few"] else "yes" if row["drifted"] else "",
        "effect": f"{row['effect']:.3f}",
        "name": row["name"],
        **dict(zip(("reference", "current"), cells or ("", ""), strict=False)),
        "n": " / ".join(f"{side['n']:,}" for side in sides),
        "p": "" if chance is None else "<0.0001" if chance < 0.0001 else f"{chance:.4f}",
        **{name: "" if value is None else f"{value:.3f}" for name, value in numbers.items()},
    }


DRIFT: Final = Command(_add, _show)
