"""`inference-store completion`: prints shell completion, made from the commands' own arguments."""

import argparse
from contextlib import suppress

from .command import Command
from .main import CLIENT_COMMANDS, COMMANDS, build_root_parser, import_client_module, import_command

_SHELLS = ("bash", "zsh", "fish")
_EPILOG = """examples:
  cd ~/.local/share/bash-completion/completions && inference-store completion bash > inference-store
  inference-store completion zsh > "${fpath[1]}/_inference-store"
  inference-store completion fish > ~/.config/fish/completions/inference-store.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=_SHELLS)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    # No other command needs it.
    import shtab  # noqa: PLC0415

    print(shtab.complete(_all_commands(), arguments.shell))
    return 0


def _all_commands() -> argparse.ArgumentParser:
    parser = build_root_parser()
    commands = parser.add_subparsers(dest="command")
    for name, sentence in COMMANDS.items():
        command = commands.add_parser(name, help=sentence, description=sentence)
        import_command(name).add_arguments(command)
    for name, sentence in CLIENT_COMMANDS.items():
        command = commands.add_parser(name, help=sentence, description=sentence)
        with suppress(ModuleNotFoundError):
            import_client_module("main").import_command(name).add_arguments(command)
    return parser


COMPLETION = Command(run, add_arguments=add_arguments)
