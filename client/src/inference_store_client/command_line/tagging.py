"""`istore tag` and `istore untag`: tags of the inferences that match."""

import argparse
from functools import partial
from typing import Final

from inference_store_client.question import Question
from inference_store_client.requests import make_path
from inference_store_client.tagging import change_tags

from .arguments import IMPATIENT, add_filter, add_store, open_store
from .ending import FAILED, say
from .main import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the id of the model")
    parser.add_argument("tags", nargs="+", metavar="tag", help="a tag, such as 'false alarm'")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--id", action="append", dest="ids", help="the id of an inference; may be repeated"
    )
    add_filter(what)
    add_store(parser)


def _run(options: argparse.Namespace, *, removes: bool) -> int:
    path = make_path("models", options.model, "inferences")
    question = Question(path=path, filter=options.filter, inference_ids=options.ids)
    tags = {"remove" if removes else "add": options.tags}
    with open_store(options, IMPATIENT) as transport:
        tagged = transport.run(change_tags(question, **tags))
    print(f"{tagged.changed:,} changed, {tagged.unchanged:,} were so already.")
    for id in tagged.missing:
        say(f"There is no inference {id!r}.")
    for refused in tagged.refused:
        say(f"uid:{refused.uid}: {refused.detail}")
    for uid in tagged.remaining:
        say(f"uid:{uid}: the time was over before its turn: send it again.")
    return FAILED if tagged.missing or tagged.refused or tagged.remaining else 0


TAG: Final = Command(_add_arguments, partial(_run, removes=False))
UNTAG: Final = Command(_add_arguments, partial(_run, removes=True))
