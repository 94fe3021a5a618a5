"""What every service command does first: read settings, refuse unknown ones, log."""

import sys
from typing import TypeVar

from pydantic import ValidationError

from inference_store.store import logs, traces
from inference_store.store.settings import PREFIX, LogSettings, WrongSetting, refuse_unknown

S = TypeVar("S", bound=LogSettings)


def started(settings: type[S], service: str) -> S:
    """The service's settings, with logging configured; exits with a sentence where one is wrong."""
    try:
        refuse_unknown()
        read = settings()
    except WrongSetting as wrong:
        sys.exit(str(wrong))
    except ValidationError as wrong:
        # never the value: it may be a secret
        sys.exit("\n".join(sentence(e["loc"], e["msg"]) for e in wrong.errors()))
    logs.configure(read, service=service)
    traces.configure(service)
    return read


def sentence(place: tuple[int | str, ...], message: str) -> str:
    """What is wrong with one setting, or (no place) with several that do not fit together."""
    said = message.removeprefix("Value error, ")
    return f"{PREFIX}{str(place[0]).upper()}: {said}" if place else f"Settings: {said}."
