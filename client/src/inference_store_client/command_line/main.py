"""`istore <command>`: runs a command.

Exit codes: 0, or 1 if the store refused or something failed, or 2 for what was called wrongly.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, NoReturn

from inference_store_client.errors import import_extra

from .ending import end_quietly, interruptible

# Imported when run: `--help` waits for none of them.
COMMANDS: Final[Mapping[str, str]] = {
    "models": "List the models that you may read.",
    "query": "Show the inferences that match.",
    "count": "Count the inferences that match.",
    "aggregate": "Show counts, means and other measures of the inferences that match, by groups.",
    "evaluate": "Compare what a model said with the ground truth: in all, by label, by slices.",
    "overview": "Show what a model did over time: inferences, errors, latency, labels, scores.",
    "drift": "Show how two windows of a model's inferences differ, by more than chance.",
    "get": "Show one inference.",
    "tail": "Show the last arrivals, and follow what arrives.",
    "sample": "Show a random sample of the inferences that match.",
    "tag": "Add tags to the inferences that match.",
    "untag": "Remove tags from the inferences that match.",
    "label": "Say what is true of an inference.",
    "truth": "Load ground truth from a file.",
    "export": "Write all inferences that match to a file.",
    "exports": "List the store's exports; get, cancel or restart one, or list what was erased.",
    "replay": "Send inferences to a model again, and show what the answers differ in.",
    "erase": "Show what an erasure would take; with --yes, erase it.",
    "login": "Sign in at the issuer of the store.",
    "logout": "Forget the sign-in to the store.",
    "completion": "Print a completion script for your shell.",
}
# The modules of commands that share one.
_MODULES: Final = {
    **dict.fromkeys(("models", "query", "count", "aggregate", "overview", "get"), "reads"),
    **dict.fromkeys(("sample", "tag", "untag"), "reads"),
    "truth": "label",
    **dict.fromkeys(("login", "logout"), "signing"),
    "completion": "main",
}
PROGRAM: Final = "istore"


class _Version(argparse.Action):
    """Prints the version."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version  # noqa: PLC0415 -- it takes longer than `--help`

        print(f"{parser.prog} {version('inference-store-client')}")
        parser.exit()


def build_parser(*, is_whole: bool) -> argparse.ArgumentParser:
    """Build the parser of the commands; `is_whole`: with the arguments of each."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Asks an Inference Store what models did in production."
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, sentence in COMMANDS.items():
        command = commands.add_parser(name, help=sentence, description=sentence, add_help=is_whole)
        if is_whole:
            import_command(name).add_arguments(command)
    return parser


class Command(NamedTuple):
    """A command: what adds its arguments, and what runs it and returns the exit code."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def import_command(name: str) -> Command:
    """Import a command."""
    module = import_module(f"{__package__}.{_MODULES.get(name, name)}")
    command: Command = getattr(module, name.upper())
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its result is the exit code."""
    return end_quietly(lambda: _choose_and_run(arguments))


def _choose_and_run(arguments: Sequence[str] | None) -> int:
    options, rest = build_parser(is_whole=False).parse_known_args(arguments)
    return _run(options.command, rest, f"{PROGRAM} {options.command}")


def run_command(name: str, arguments: Sequence[str], *, program: str) -> int:
    """Run one command with its own arguments; its result is the exit code."""
    return end_quietly(lambda: _run(name, arguments, program))


def _run(name: str, arguments: Sequence[str], program: str) -> int:
    command = import_command(name)
    parser = argparse.ArgumentParser(prog=program, description=COMMANDS[name])
    command.add_arguments(parser)
    options = parser.parse_args(join_values(arguments))
    with interruptible():
        return command.run(options)


_OPTIONS: Final = frozenset({"--order", "--sort", "--since", "--until", "--reference"})


def join_values(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with such a value joined to its option: `--sort=-top_score`."""
    joined: list[str] = []
    for argument in arguments:
        is_value = argument.startswith("-") and not argument.startswith("--")
        if is_value and joined and joined[-1] in _OPTIONS:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


# Shell completion, made from the commands' own arguments.

_EPILOG = """examples:
  cd ~/.local/share/bash-completion/completions && istore completion bash > istore
  istore completion zsh > "${fpath[1]}/_istore"
"""


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _complete(options: argparse.Namespace) -> int:
    """Print the script."""
    shtab = import_extra("shtab", "completion")
    print(shtab.complete(build_parser(is_whole=True), options.shell))
    return 0


COMPLETION: Final = Command(_add_completion, _complete)


if __name__ == "__main__":
    sys.exit(main())
