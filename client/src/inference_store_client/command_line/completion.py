"""`istore completion`: prints shell completion, made from the commands' own arguments."""

import argparse
from typing import Final

from inference_store_client.errors import import_extra

from .main import COMMANDS, Command, build_root_parser, import_command

_EPILOG = """examples:
  cd ~/.local/share/bash-completion/completions && istore completion bash > istore
  istore completion zsh > "${fpath[1]}/_istore"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(import_extra("shtab", "completion").complete(_all_commands(), options.shell))
    return 0


def _all_commands() -> argparse.ArgumentParser:
    parser = build_root_parser()
    commands = parser.add_subparsers(dest="command")
    for name, sentence in COMMANDS.items():
        command = commands.add_parser(name, help=sentence, description=sentence)
        import_command(name).add_arguments(command)
    return parser


COMPLETION: Final = Command(add_arguments, run)
