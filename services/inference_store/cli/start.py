"""What every service command does first: read settings, refuse unknown ones, log."""

import sys
from typing import TypeVar

from inference_store.platform import logs, traces
from inference_store.platform.settings import Checks, LogSettings, WrongSetting
from inference_store.platform.settings import read as read_settings

S = TypeVar("S", bound=LogSettings)


def started(settings: type[S], service: str, checks: Checks | None = None) -> S:
    """The service's settings, with logging configured; exits with a sentence for each that is
    wrong, and for what the checks find."""
    try:
        read = read_settings(settings, checks)
    except WrongSetting as wrong:
        sys.exit(str(wrong))
    logs.configure(read, service=service)
    traces.configure(service)
    return read
