"""`istore erase`: shows what an erasure would take; with --yes it asks for the erasure."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inference_store_client.command_line.printing import write_line
from inference_store_client.decoding import decode
from inference_store_client.json_text import Json, write_count
from inference_store_client.reading import request_any, require_object
from inference_store_client.requests import make_path, make_request
from inference_store_client.transport import Transport, run

from .arguments import IMPATIENT, add_filter, add_ids, add_store, open_store
from .ending import FAILED, say
from .main import Command
from .printing import add_format, is_table, print_members


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", help="the id of the model")
    what = parser.add_mutually_exclusive_group(required=True)
    add_ids(what)
    what.add_argument(
        "--subject", nargs=2, metavar=("KEY", "VALUE"), help="all about one person: person_id p-7"
    )
    add_filter(what)
    parser.add_argument("--yes", action="store_true", help="erase: it cannot be undone")
    add_format(parser)
    add_store(parser)


def run_erase(options: argparse.Namespace) -> int:
    """Show what would go, and erase it if that was asked for."""
    body = _make_body(options)
    with open_store(options, IMPATIENT) as store:
        estimate = _post(store._transport, options.model, {**body, "dry_run": True}, is_read=True)
        if not options.yes:
            _print(estimate, options)
            say("Nothing was erased. The same command with --yes erases it for ever.")
            return FAILED
        say(_describe(estimate))
        erasure = _post(store._transport, options.model, body, is_read=False)
    _print(erasure, options)
    say("The erasure was asked for: what it takes is hidden, and then deleted.")
    return 0


def _make_body(options: argparse.Namespace) -> dict[str, Any]:
    if options.subject is not None:
        key, value = options.subject
        return {"subject": {"key": key, "value": value}}
    if options.ids is not None:
        return {"inference_ids": options.ids}
    return {"filter": options.filter}


def _post(
    transport: Transport, model: str, body: Mapping[str, Any], *, is_read: bool
) -> Mapping[str, Json]:
    """Send an erasure, or a dry run, which changes nothing and may be sent again."""
    path = make_path("models", model, "erasures")
    request = make_request("POST", path, body=body, is_read=is_read)
    return require_object(run(request_any(transport, request)))


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What an erasure would take."""

    inferences: int
    objects: int
    held: int


def _describe(answer: Mapping[str, Any]) -> str:
    estimate = decode(_Estimate, answer)
    inferences = write_count(estimate.inferences, "inference")
    objects = write_count(estimate.objects, "object")
    return f"It takes {inferences} with {objects}; held: {estimate.held:,}."


def _print(answer: Mapping[str, Json], options: argparse.Namespace) -> None:
    if is_table(options):
        print_members({name: value for name, value in answer.items() if name != "models"})
    else:
        print(write_line(answer))


ERASE: Final = Command(add_arguments, run_erase)
