"""Logging: one call configures it, for people (`text`) or machines (`json`).

A line reports an event and its object: never a payload, a value of a filter or a secret. Two
safeguards help: errors of the database carry no values (index/database.py), and a secret of the
settings that a line contains anyway (in a library's error, say) is struck out.
"""

import logging
import sys
from collections.abc import Iterator
from typing import Any, TextIO
from urllib.parse import quote, unquote, urlsplit

import structlog
from pydantic import SecretStr
from structlog.typing import EventDict, Processor, WrappedLogger

from . import traces
from .settings import LogSettings

_STRUCK_OUT = "***"
# Shorter ones are words that occur in lines anyway.
_SHORTEST_SECRET = 4
_LONGEST_TEXT = 2000


def configure(settings: LogSettings, *, service: str, stream: TextIO = sys.stderr) -> None:
    """Send every log line of this process to `stream`, with the service's name."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
    ]
    rendered: list[Processor] = (
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
                _SecretStriker(secrets_of(settings)),
                *rendered,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    # At `debug` these log every frame that they receive, including records.
    for library in ("aiokafka", "asyncio", "urllib3"):
        logging.getLogger(library).setLevel(max(logging.INFO, logging.root.level))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    structlog.contextvars.bind_contextvars(service=service)


def secrets_of(settings: LogSettings) -> frozenset[str]:
    """Return every secret of the settings in all its spellings; of an address, only its
    password."""
    values = (getattr(settings, name) for name in type(settings).model_fields)
    secrets = (value.get_secret_value() for value in values if isinstance(value, SecretStr))
    spelt = (spelling for secret in secrets for spelling in _spellings(secret))
    return frozenset(spelling for spelling in spelt if len(spelling) >= _SHORTEST_SECRET)


def strike_out(text: str, secrets: frozenset[str]) -> str:
    """Return a text without the secrets; the longest first, because one may be part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _STRUCK_OUT)
    return text


def _spellings(secret: str) -> Iterator[str]:
    if "://" in secret:
        secret = urlsplit(secret).password or ""
    yield from {secret, unquote(secret), quote(secret, safe=""), quote(unquote(secret), safe="")}


def _add_trace(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event.update(traces.ids())
    return event


class _SecretStriker:
    """Strikes secrets out of every text of a line, and cuts what is too long to be ours."""

    def __init__(self, secrets: frozenset[str]) -> None:
        self._secrets = secrets

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {name: self._without(name, value) for name, value in event.items()}

    def _without(self, name: str, value: Any) -> Any:
        if isinstance(value, BaseException | bytes):
            value = str(value)
        if not isinstance(value, str):
            return value
        value = strike_out(value, self._secrets)
        # A traceback is long, and its end matters.
        return value if name == "exception" else value[:_LONGEST_TEXT]


def one_line(_: object, __: str, event: EventDict) -> EventDict:
    """Escape untrusted text, so that it cannot begin a line of a text log, or control the
    terminal."""
    escaped = {_printable(str(name)): value for name, value in event.items()}
    escaped["event"] = _printable(str(event.get("event", "")))
    if "exception" in event:
        lines = str(event["exception"]).split("\n")
        escaped["exception"] = "\n".join(f"    {_printable(line)}" for line in lines)
    return escaped


def _printable(text: str) -> str:
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text
    )
