"""A command that was chosen: its arguments are read, and it runs."""

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from inference_store.store import traces
from inference_store.store.errors import SchemaBehind
from inference_store.store.settings import WrongSetting


def run(command: ModuleType, arguments: Sequence[str], *, program: str, description: str) -> int:
    """Run a module of this folder; its result is the exit code."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    command.add_arguments(parser)
    try:
        return int(command.run(parser.parse_args(arguments)))
    except (SchemaBehind, WrongSetting) as refused:
        sys.exit(str(refused))
    finally:
        traces.stop()
