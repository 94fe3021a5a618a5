"""Logging: one call configures it, for people (`text`) or machines (`json`)."""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict

from .settings import LogSettings


def configure(settings: LogSettings, *, service: str, stream: TextIO = sys.stderr) -> None:
    """Send every log line of this process to `stream`, with the service's name."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()]
        if settings.log_format == "json"
        else [one_line, structlog.dev.ConsoleRenderer(colors=False)]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                *rendered,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    structlog.contextvars.bind_contextvars(service=service)


def one_line(_: object, __: str, event: EventDict) -> EventDict:
    """Nothing that others wrote can begin a line of a text log, or speak to the terminal."""
    shown = {_printable(str(name)): value for name, value in event.items()}
    shown["event"] = _printable(str(event.get("event", "")))
    if "exception" in event:
        lines = str(event["exception"]).split("\n")
        shown["exception"] = "\n".join(f"    {_printable(line)}" for line in lines)
    return shown


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
