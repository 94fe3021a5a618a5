"""Starts a service command: reads settings, refuses unknown ones, configures logging."""

import sys
from typing import TypeVar

from inference_store.platform import logs, traces
from inference_store.platform.settings import Checks, LogSettings, WrongSetting
from inference_store.platform.settings import read as read_settings

S = TypeVar("S", bound=LogSettings)


def start_service(settings: type[S], service: str, checks: Checks | None = None) -> S:
    """Return the service's settings, with logging configured.

    Exits with a sentence for each invalid setting, and for what the checks find.
    """
    try:
        read = read_settings(settings, checks)
    except WrongSetting as wrong:
        sys.exit(str(wrong))
    logs.configure(read, service=service)
    traces.configure(service)
    return read
