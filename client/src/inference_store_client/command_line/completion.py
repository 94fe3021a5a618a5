"""`istore completion`: prints shell completion, made from the commands' own arguments."""

import argparse
from typing import Final

from inference_store_client.errors import import_extra

from .main import Command, build_parser

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
    shtab = import_extra("shtab", "completion")
    print(shtab.complete(build_parser(is_whole=True), options.shell))
    return 0


COMPLETION: Final = Command(add_arguments, run)
