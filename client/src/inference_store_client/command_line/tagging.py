"""`istore tag` and `istore untag`: tags of the inferences that match."""

import argparse
from functools import partial
from typing import Final

from .arguments import IMPATIENT, add_filter, add_ids, add_store, open_store
from .ending import FAILED, say
from .main import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="the id of the model")
    parser.add_argument("tags", nargs="+", metavar="tag", help="a tag, such as 'false alarm'")
    what = parser.add_mutually_exclusive_group(required=True)
    add_ids(what)
    add_filter(what)
    add_store(parser)


def _run(options: argparse.Namespace, *, removes: bool) -> int:
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


TAG: Final = Command(_add_arguments, partial(_run, removes=False))
UNTAG: Final = Command(_add_arguments, partial(_run, removes=True))
