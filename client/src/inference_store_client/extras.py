"""The libraries of extras: imported when they are needed, and how they are installed."""

from importlib import import_module
from typing import Any

from .errors import SettingsError


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an extra. Raises SettingsError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError:
        install = f"python -m pip install './client[{extra}]'"
        raise SettingsError(f"this needs {module}: in the source tree, {install}") from None
