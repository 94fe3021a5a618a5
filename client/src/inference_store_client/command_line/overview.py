"""`istore overview`: what a model did over time, as a page of text with lines of bars."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final

from inference_store_client.methods import run
from inference_store_client.reading import fetch_plain, make_overview_request
from inference_store_client.tables import make_printable, shorten

from .arguments import IMPATIENT, add_store, add_window, open_store
from .main import Command
from .printing import LINES, add_format, is_table, write_line

_BARS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 20


def _add_overview(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the id of the model")
    add_window(parser)
    add_format(parser)
    parser.add_argument(
        "--json", dest="format", action="store_const", const=LINES, help="as --format jsonl"
    )
    add_store(parser)


def _show_overview(options: argparse.Namespace) -> int:
    request = make_overview_request(options.model, options.since, options.until)
    with open_store(options, IMPATIENT) as store:
        overview = run(fetch_plain(store._transport, request))
    print(*(_describe(overview) if is_table(options) else [write_line(overview)]), sep="\n")
    return 0


def _describe(overview: Any) -> Iterator[str]:
    bars, number = overview["bars"], overview["inferences"]
    if not number:
        yield "no inference in this time"
    else:
        yield f"{overview['received_from'][:19]}Z to {overview['received_to'][:19]}Z"
        yield _line("inferences", f"{number:,}", [bar["inferences"] for bar in bars])
        yield _line("errors", _share(overview["errors"], number), [bar["errors"] for bar in bars])
        yield _line("with predictions", _share(overview["predicted"], number), ())
        for at, value in (overview["latency"] or {}).items():
            spans = [(bar["latency"] or {}).get(at, 0) for bar in bars]
            yield _line(f"latency {at}", f"{value:,.1f} ms", spans)
    labelled = overview["other_labels"] + sum(label["inferences"] for label in overview["labels"])
    for place, label in enumerate(overview["labels"]):
        counts = [bar["labels"][place] for bar in bars]
        yield _line(label["label"], _share(label["inferences"], labelled), counts)
    if scores := overview["scores"]:
        ends = f"{scores[0]['low']:g} to {scores[-1]['high']:g}"
        yield _line("top scores", ends, [score["inferences"] for score in scores])
    if overview["estimated"]:
        of = f"{overview['sampled']:,} of {number:,} inferences"
        yield f"Latency, labels, scores and problems are estimated from {of}."
    waiting = {name: overview[name] for name in ("dead_letters", "parked_events")}
    yield from (f"! {n:,} {name.replace('_', ' ')}" for name, n in waiting.items() if n)
    for problem in overview["problems"]:
        yield f"! {problem['inferences']:,} with {problem['property']} = '{problem['value']}'"


def _line(name: str, value: str, numbers: Sequence[float]) -> str:
    top = max(numbers, default=0) or 1
    steps = [-(-number * (len(_BARS) - 1) // top) for number in numbers]
    drawn = "".join(_BARS[int(step)] for step in steps)
    return f"{shorten(make_printable(name), _WIDTH):<{_WIDTH}}{value:>16}  {drawn}".rstrip()


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})"


OVERVIEW: Final = Command(_add_overview, _show_overview)
