"""`istore label` and `istore truth`: say what is true of one inference, or of many in a file."""

import argparse
from pathlib import Path
from typing import Any, Final

from inference_store_client.errors import SettingsError

from .arguments import IMPATIENT, add_store, open_store
from .ending import FAILED, say
from .main import Command


def _add_label(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the id of the model")
    parser.add_argument("inference", help="its id, an alias, or uid:<uuid>")
    parser.add_argument(
        "items",
        nargs="*",
        metavar="label",
        help="a label, or label@xmin,ymin,xmax,ymax; none: there is nothing to find",
    )
    parser.add_argument("--source", default="human", help="who says so (default: human)")
    parser.add_argument(
        "--incomplete", action="store_true", help="there may be more than the labels name"
    )
    parser.add_argument("--delete", action="store_true", help="delete what the source said")
    add_store(parser)


def _label(options: argparse.Namespace) -> int:
    items = [_read_item(text) for text in options.items]
    with open_store(options, IMPATIENT) as store:
        inference = store.model(options.model).inference(options.inference)
        if options.delete:
            inference.unlabel(source=options.source)
            print("Deleted.")
            return 0
        about: Any = {"source": options.source, "complete": not options.incomplete}
        said = inference.label(*items, **about)
    print(f"Revision {said.revision} of {said.source!r}: {len(said.items):,} items.")
    return 0


def _read_item(text: str) -> dict[str, Any]:
    label, _, corners = text.rpartition("@")
    if "," not in corners or not label:
        return {"label": text}
    try:
        left, top, right, bottom = map(float, corners.split(","))
    except ValueError:
        raise SettingsError(f"{text!r} is not LABEL@xmin,ymin,xmax,ymax") from None
    return {"label": label, "box": [left, top, right, bottom]}


def _add_truth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("load",), help="load: send a file")
    parser.add_argument(
        "model",
        nargs="?",
        help="the id of the model; none: rows name theirs, or by data_hash are for all",
    )
    parser.add_argument("file", type=Path, help="rows: .csv, .jsonl or .parquet")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="what the file calls a column: inference_id=image; repeat it",
    )
    add_store(parser)


def _load(options: argparse.Namespace) -> int:
    columns = dict(column.partition("=")[::2] for column in options.column)
    with open_store(options, IMPATIENT) as store:
        target = store if options.model is None else store.model(options.model)
        loaded = target.load_ground_truth(options.file, columns=columns)
    print(
        f"{loaded.changed:,} changed, {loaded.unchanged:,} were so already,"
        f" {loaded.awaiting:,} wait for their inferences."
    )
    for problem in loaded.problems:
        say(f"{options.file}:{problem.line}: {problem.outcome}: {problem.why}")
    return FAILED if loaded.ambiguous or loaded.erased or loaded.refused else 0


LABEL: Final = Command(_add_label, _label)
TRUTH: Final = Command(_add_truth, _load)
