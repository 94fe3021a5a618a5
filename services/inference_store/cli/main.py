"""`inference-store <command>`: runs a command."""

import argparse
import gc
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

# Imported when run: a command needs only its own parts installed.
COMMANDS = {
    "migrate": "Migrate the database to this version's schema.",
    "distribute": "Spread the tables over the nodes of a Citus cluster.",
    "ingester": "Index what arrives on Kafka.",
    "resume": "Resume ingesters that halted because of too many dead letters.",
    "parked": "List events that wait for an object; retry them now, or discard one.",
    "api": "Serve the REST API and the console.",
    "proxy": "Stand in front of a model server and capture its traffic.",
    "retention": "Delete by policy, on a schedule.",
    "reconcile": "Compare the bucket with the index; rebuild the index from the bucket.",
    "doctor": "Check what the services need, and say how to fix what is wrong.",
    "ledger": "Show what was decided about deletion, and replay it after a restore.",
    "certificates": "Verify the certificates of erasures, and make keys that sign them.",
    "keys": "Make, list, rotate and revoke API keys.",
    "audit": "Verify the audit's hash chain.",
    "demo": "Start everything on this machine and feed it real detections.",
    "completion": "Print a completion script for your shell.",
}
_MODULES = {
    **dict.fromkeys(("migrate", "distribute", "resume", "parked"), "database"),
    "completion": "command",
    **dict.fromkeys(("certificates", "ledger", "audit"), "proof"),
    **dict.fromkeys(("doctor", "reconcile"), "upkeep"),
    **dict.fromkeys(("api", "ingester", "proxy", "retention"), "serve"),
}
"""The modules that hold several commands; any other command has one of its own name."""
# The commands for users, which the Python client has: the same as those of `istore`.
CLIENT_COMMANDS = {
    "models": "List the models that you may read.",
    "query": "Show the inferences that match.",
    "count": "Count the inferences that match.",
    "aggregate": "Show counts, means and other measures of the inferences that match, by groups.",
    "overview": "Show what a model did over time: inferences, errors, latency, labels, scores.",
    "drift": "Show how two windows of a model's inferences differ, by more than chance.",
    "get": "Show one inference.",
    "tail": "Show the last arrivals, and follow what arrives.",
    "sample": "Show a random sample of the inferences that match.",
    "tag": "Add tags to the inferences that match.",
    "untag": "Remove tags from the inferences that match.",
    "export": "Write all inferences that match to a file.",
    "exports": "List the store's exports; get, cancel or restart one, or list what was erased.",
    "erase": "Show what an erasure would take; with --yes, erase it.",
    "login": "Sign in at the issuer of the store.",
    "logout": "Forget the sign-in to the store.",
}


_CLOSED_PIPE = 141
"""What shells know a command by whose reader of standard output has gone, as in `| head`."""


class _Version(argparse.Action):
    """Prints the version; it is looked up only then, because that takes longer than the rest of
    `--help`."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version  # noqa: PLC0415

        print(f"{parser.prog} {version('inference-store')}")
        parser.exit()


def build_root_parser() -> argparse.ArgumentParser:
    """Build the parser of the options that come before a command."""
    parser = argparse.ArgumentParser(prog="inference-store", description=__doc__)
    parser.add_argument("--version", action=_Version)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its result is the exit code."""
    parser = build_root_parser()
    commands = parser.add_subparsers(dest="command", required=True)
    for name, sentence in {**COMMANDS, **CLIENT_COMMANDS}.items():
        commands.add_parser(name, help=sentence, description=sentence, add_help=False)
    options, rest = parser.parse_known_args(arguments)
    chosen: str = options.command
    if chosen in CLIENT_COMMANDS:
        return run_client_command(chosen, rest)
    try:
        command = import_command(chosen)
        ended: int = command.call(rest, f"inference-store {chosen}", COMMANDS[chosen])
        sys.stdout.flush()
    except BrokenPipeError:
        if not is_reader_gone():
            raise  # another pipe or socket is broken
        # The reader has enough, such as `| head`: the rest must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    return ended


def is_reader_gone() -> bool:
    """Return whether the reader of standard output is gone."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def import_command(name: str) -> Any:
    """Import a Command, whose module this one, for a quick `--help`, does not import."""
    with importing():
        module = import_module(f"inference_store.cli.{_MODULES.get(name, name)}")
        return getattr(module, name.upper())


@contextmanager
def importing() -> Iterator[None]:
    """Keep the garbage collector off for imported objects: it would find nothing, and take a fifth
    of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


_CLIENT = "inference_store_client"


def run_client_command(name: str, arguments: Sequence[str]) -> int:
    """Run a command of the client; its result is the exit code. Exits if it is not installed."""
    try:
        commands = import_client_module("main")
    except ModuleNotFoundError as missing:
        sys.exit(
            f"`inference-store {name}` needs the Python client ({missing.name} is missing):"
            " python -m pip install ./client, in the source tree"
        )
    return int(commands.run_command(name, arguments, program=f"inference-store {name}"))


def import_client_module(name: str) -> ModuleType:
    """Import a module of the client's command line. Raises ModuleNotFoundError."""
    import_module(_CLIENT)
    return import_module(f"{_CLIENT}.command_line.{name}")


if __name__ == "__main__":
    sys.exit(main())
