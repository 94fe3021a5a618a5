"""Runs the command that was chosen: reads its arguments and calls it."""

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from inference_store.inference.errors import SchemaBehind
from inference_store.platform import traces
from inference_store.platform.settings import SettingsGroup, WrongSetting


class _Parser(argparse.ArgumentParser):
    """Lists a command's settings in its help."""

    settings: type[SettingsGroup] | None = None

    def format_help(self) -> str:
        if self.settings is None:
            return super().format_help()
        # Read from the sources, only on request.
        from .settings_help import list_settings  # noqa: PLC0415

        return f"{super().format_help()}\n{list_settings(self.settings)}\n"


def run(command: ModuleType, arguments: Sequence[str], *, program: str, description: str) -> int:
    """Run a module of this folder; its result is the exit code."""
    parser = _Parser(prog=program, description=description)
    parser.settings = getattr(command, "SETTINGS", None)
    command.add_arguments(parser)
    try:
        return int(command.run(parser.parse_args(arguments)))
    except (SchemaBehind, WrongSetting) as refused:
        sys.exit(str(refused))
    finally:
        traces.stop()
