"""`istore evaluate`: figures as tables, with what lies between which they are 95 times of 100."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from inference_store_client.evaluating import EvaluationOptions, evaluate
from inference_store_client.tables import Table, measure, pick
from inference_store_client.transport import run

from .arguments import IMPATIENT, add_conditions, add_store, make_question, open_store
from .main import Command
from .printing import write_line

_RETRIEVED: Final = ("precision", "recall", "f1")


def _add(parser: argparse.ArgumentParser) -> None:
    add_conditions(parser)
    parser.add_argument(
        "--by", metavar="NAME", help="a metadata key or property: slices, the worst first"
    )
    parser.add_argument(
        "--task", choices=("labels", "boxes", "numbers"), help="default: the model's"
    )
    parser.add_argument("--source", help="whose truth (default: what was said last)")
    parser.add_argument("--iou", type=float, help="of boxes: the least overlap (default: 0.5)")
    parser.add_argument("--score", type=float, help="of boxes: the least score that counts")
    parser.add_argument("--label", help="of boxes: only those with this label")
    parser.add_argument("--json", action="store_true", help="print the answer as a line of JSON")
    add_store(parser)


def _evaluate(options: argparse.Namespace) -> int:
    how = EvaluationOptions(
        task=options.task,
        source=options.source,
        iou=options.iou,
        score=options.score,
        label=options.label,
    )
    with open_store(options, IMPATIENT) as store:
        question = make_question(options)
        answer = run(evaluate(store._transport, question, options.by, how))
    print(*([write_line(answer)] if options.json else _describe(answer)), sep="\n")
    return 0


def _describe(answer: Mapping[str, Any]) -> Iterator[str]:
    report, task = answer[answer["task"]], answer["task"]
    yield f"{answer['labelled']:,} of {answer['inferences']:,} inferences have ground truth."
    if answer["too_few"]:
        yield "They are too few: no figure says much."
    yield ""
    names = {
        "labels": ("accuracy",),
        "boxes": (*_RETRIEVED, "average_precision"),
        "numbers": ("mae", "rmse", "bias", "r2"),
    }[task]
    for name in names:
        of = report[name]
        shown = of if name == "average_precision" else {name: of}
        yield from (f"{key:<12}{_show(value)}" for key, value in shown.items())
    if task != "numbers" and report["labels"]:
        yield ""
        yield from _tabulate(report["labels"], ("label", "truth", "predicted", *_RETRIEVED))
    if (slices := answer["slices"]) is not None:
        yield ""
        figure = slices["figure"]
        rows = [
            {**one, slices["by"]: one["value"], figure: one["figure"]} for one in slices["items"]
        ]
        for row in rows:
            row["n"] = f"{row['labelled']:,}" + (" (too few)" if row["too_few"] else "")
        yield from _tabulate(rows, (slices["by"], "n", figure, "worse"))
        if slices["others"]:
            yield f"{slices['others']:,} more slices"


def _tabulate(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    shown = [{name: _show(row[name]) for name in columns} for row in rows]
    widths = [max(map(measure, [name, *(pick(row, name) for row in shown)])) for name in columns]
    table = Table(columns, widths)
    yield table.format_head()
    yield from map(table.format_row, shown)


def _show(value: Any) -> str:
    """Return a figure with its interval; a dash where there is none."""
    if isinstance(value, Mapping):
        interval = (
            "" if value["interval"] is None else "  {:.3f} to {:.3f}".format(*value["interval"])
        )
        return _show(value["value"]) + interval
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


EVALUATE: Final = Command(_add, _evaluate)
