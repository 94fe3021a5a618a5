"""Commands that show what the store has: models, inferences, their number; and that tag them."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TextIO

from inference_store_client.aggregating import Grouping, aggregate
from inference_store_client.errors import SettingsError
from inference_store_client.json_text import read_json
from inference_store_client.question import NEWEST_FIRST
from inference_store_client.reading import (
    count,
    fetch_plain,
    make_overview_request,
    read_all,
    read_items,
    read_list,
    read_path,
)
from inference_store_client.requests import make_path, make_request
from inference_store_client.streaming import collect
from inference_store_client.tables import make_printable, shorten
from inference_store_client.transport import iterate, run

from .arguments import (
    IMPATIENT,
    add_columns,
    add_conditions,
    add_filter,
    add_ids,
    add_store,
    add_window,
    make_question,
    open_store,
    parse_size,
)
from .ending import FAILED, say
from .main import Command
from .printing import (
    LINES,
    ListPage,
    RowPrinter,
    add_format,
    choose_columns,
    is_table,
    print_items,
    print_members,
    shape,
    write_line,
)

_COLUMNS: Final = ("model_id", "project_id", "name", "task_type")


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", metavar="ID", help="those of this project alone")
    add_format(parser)
    add_store(parser)


def _show_models(options: argparse.Namespace) -> int:
    """Show them, in order of id."""
    params = {} if options.project is None else {"project_id": options.project}
    with open_store(options, IMPATIENT) as store:
        listed = read_list(store._transport, make_path("models"), ListPage, params)
        items = run(collect(listed))
    print_items(items, _COLUMNS, options)
    return 0


def _add_query(parser: argparse.ArgumentParser) -> None:
    add_conditions(parser)
    parser.add_argument(
        "--limit", type=parse_size, default=20, help="show at most so many (default: %(default)s)"
    )
    parser.add_argument(
        "--sort", default=NEWEST_FIRST, help="a name; `-` before it: the greatest first"
    )
    _add_form(parser)


def _add_form(parser: argparse.ArgumentParser) -> None:
    add_columns(parser)
    add_format(parser)
    add_store(parser)


def _query(options: argparse.Namespace) -> int:
    question = make_question(options, choose_columns(options), sort=options.sort)
    with open_store(options, IMPATIENT) as store:
        # one more than is shown, to know of it
        asked = question.take(options.limit + 1)
        items = iterate(read_items(store._transport, asked, dict))
        RowPrinter(options).print_rows(islice(items, options.limit))
        has_more = next(items, None) is not None
    if has_more:
        say(f"More match: --limit shows more than {options.limit}, `export` writes all to a file.")
    return 0


def _add_count(parser: argparse.ArgumentParser) -> None:
    add_conditions(parser)
    add_store(parser)


def _count(options: argparse.Namespace) -> int:
    with open_store(options, IMPATIENT) as store:
        print(run(count(store._transport, make_question(options))))
    return 0


def _add_aggregate(parser: argparse.ArgumentParser) -> None:
    add_conditions(parser)
    parser.add_argument(
        "measures",
        nargs="*",
        type=_parse_json,
        help="such as: count 'mean(top_score)'; or JSON as the API takes it (default: count)",
    )
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        type=_parse_json,
        metavar="NAME",
        help="a group for each value of a property, a metadata key or `label`; may be repeated",
    )
    parser.add_argument("--every", metavar="SPAN", help="a group for each hour, day, PT15M, …")
    parser.add_argument("--order", metavar="NAME", help="of groups; `-count`: the largest first")
    parser.add_argument("--limit", type=parse_size, help="at most so many groups (default: 100)")
    add_format(parser)
    add_store(parser)


def _parse_json(text: str) -> Any:
    """Return what is JSON as such, and a name as it is."""
    if not text.startswith("{"):
        return text
    try:
        return read_json(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {wrong}") from None


def _aggregate(options: argparse.Namespace) -> int:
    grouping = Grouping(options.by, options.every, options.order, options.limit)
    with open_store(options, IMPATIENT) as store:
        question = make_question(options)
        measured = aggregate(store._transport, question, grouping, options.measures, {})
        rows = run(measured)
    print_items(rows, [*dict.fromkeys(name for row in rows for name in row)], options)
    return 0


def _add_sample(parser: argparse.ArgumentParser) -> None:
    add_conditions(parser)
    parser.add_argument(
        "--size",
        type=parse_size,
        default=20,
        help="how many, at most 10,000 (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed takes another sample (default: 0)"
    )
    _add_form(parser)


def _sample(options: argparse.Namespace) -> int:
    question = make_question(options, choose_columns(options))
    sample = question.take_sample(options.size, options.seed)
    with open_store(options, IMPATIENT) as store:
        items = iterate(read_all(store._transport, sample, dict))
        RowPrinter(options).print_rows(items)
    return 0


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the id of the model")
    parser.add_argument("inference", help="the id of the inference, an alias, or uid:<uuid>")
    parser.add_argument(
        "--part",
        choices=("data", "response"),
        help="write its datum, or the model's response, as it was stored: --part data > frame.jpg",
    )
    add_format(parser)
    add_store(parser)


def _get(options: argparse.Namespace) -> int:
    """Show one inference with all that is known of it, or a blob of it."""
    path = make_path("models", options.model, "inferences", options.inference)
    with open_store(options, IMPATIENT) as store:
        if options.part is not None:
            blob = run(read_path(store._transport, f"{path}/{options.part}"))
            write_part(blob.content, options.part, sys.stdout)
            return 0
        request = make_request("GET", path, params={"include": "metadata,predictions"})
        item = run(fetch_plain(store._transport, request))
    shown = shape(item, None)
    if (count := shown.pop("count", 1)) and count > 1:
        say(f"{count} inferences have this id; this is the newest.")
    if is_table(options):
        print_members(shown)
    else:
        print(write_line(shown))
    return 0


def write_part(content: bytes, part: str, output: TextIO) -> None:
    """Write a part as it was stored. Raises SettingsError for bytes that would steer a terminal."""
    if output.isatty():
        text = content.decode("utf-8", "surrogateescape")
        if make_printable(text, kept="\n\r\t") != text:
            raise SettingsError(f"the {part} is not plain text: write it to a file, > FILE")
    output.buffer.write(content)


# What a model did over time, as a page of text with lines of bars.

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
    books = overview["captured"] or {"captured": 0, "missed": {}}
    if decided := books["captured"] + sum(books["missed"].values()):
        yield _line("captured, all models", _share(books["captured"], decided), ())
        yield from (f"! {n:,} calls missed: {why}" for why, n in books["missed"].items())
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


# Tags of the inferences that match.


def _add_tag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the id of the model")
    parser.add_argument("tags", nargs="+", metavar="tag", help="a tag, such as 'false alarm'")
    what = parser.add_mutually_exclusive_group(required=True)
    add_ids(what)
    add_filter(what)
    add_store(parser)


def _tag(options: argparse.Namespace, *, removes: bool) -> int:
    with open_store(options, IMPATIENT) as store:
        inferences = store.model(options.model).inferences(
            options.filter, inference_ids=options.ids
        )
        tagged = (inferences.untag if removes else inferences.tag)(*options.tags)
    print(f"{tagged.changed:,} changed, {tagged.unchanged:,} were so already.")
    for id in tagged.missing:
        say(f"There is no inference {id!r}.")
    for refused in tagged.refused:
        say(f"uid:{refused.uid}: {refused.detail}")
    for uid in tagged.remaining:
        say(f"uid:{uid}: the time was over before its turn: send it again.")
    return FAILED if tagged.missing or tagged.refused or tagged.remaining else 0


MODELS: Final = Command(_add_models, _show_models)
QUERY: Final = Command(_add_query, _query)
COUNT: Final = Command(_add_count, _count)
AGGREGATE: Final = Command(_add_aggregate, _aggregate)
SAMPLE: Final = Command(_add_sample, _sample)
GET: Final = Command(_add_get, _get)
OVERVIEW: Final = Command(_add_overview, _show_overview)
TAG: Final = Command(_add_tag, partial(_tag, removes=False))
UNTAG: Final = Command(_add_tag, partial(_tag, removes=True))
