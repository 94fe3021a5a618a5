"""How every service logs."""

from typing import Literal

from .group import SettingsGroup


class LogSettings(SettingsGroup):
    """How every service logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""
    log_format: Literal["json", "text"] = "json"
    """`json`: one object a line; `text`: for reading in a terminal."""
