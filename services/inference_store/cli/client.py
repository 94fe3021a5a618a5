"""The commands for users: the Python client, a distribution of its own, runs them."""

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

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
