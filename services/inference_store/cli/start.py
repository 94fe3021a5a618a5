"""What every service command does first: read settings, refuse unknown ones, log."""

import sys
from typing import TypeVar

from pydantic import ValidationError

from inference_store.store import logs
from inference_store.store.settings import PREFIX, LogSettings, UnknownSetting, refuse_unknown

S = TypeVar("S", bound=LogSettings)


def started(settings: type[S], service: str) -> S:
    """The service's settings, with logging configured; exits with a sentence where one is wrong."""
    try:
        refuse_unknown()
        read = settings()
    except UnknownSetting as unknown:
        sys.exit(str(unknown))
    except ValidationError as wrong:
        lines = (f"{PREFIX}{str(e['loc'][0]).upper()}: {e['msg']}" for e in wrong.errors())
        sys.exit("\n".join(lines))
    logs.configure(read, service=service)
    return read
