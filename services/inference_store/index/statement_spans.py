"""Creates a span for each statement, below the span of the work that it belongs to.

It is named after its operation and table. It does not have the statement's text, which adds nothing
for our own statements, and might contain a value as a literal.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, get_current_span
from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.platform import traces

_TARGET = re.compile(r"\b(?:FROM|INTO|UPDATE|TABLE(?: IF NOT EXISTS)?)\s+\"?(\w+)", re.IGNORECASE)
_MOST_CHARACTERS = 2000


def trace_statements(engine: AsyncEngine) -> None:
    """Trace the statements of this engine; COPY bypasses it, and is traced at its call."""

    def before(_c: Any, _cursor: Any, statement: str, _p: Any, context: Any, _m: bool) -> None:
        context.span = _begin(engine.url, statement)

    def after(_c: Any, _cursor: Any, _s: str, _p: Any, context: Any, _m: bool) -> None:
        getattr(context, "span", INVALID_SPAN).end()

    def error(context: Any) -> None:
        span = getattr(context.execution_context, "span", INVALID_SPAN)
        if span.is_recording():
            traces.failed(span, str(getattr(context.original_exception, "sqlstate", "") or "error"))
            span.end()

    event.listen(engine.sync_engine, "before_cursor_execute", before)
    event.listen(engine.sync_engine, "after_cursor_execute", after)
    event.listen(engine.sync_engine, "handle_error", error)


@contextmanager
def traced(url: URL, statement: str) -> Iterator[None]:
    """Trace a statement that the driver sends itself."""
    span = _begin(url, statement)
    try:
        yield
    except Exception as error:  # any error is recorded and raised
        traces.failed(span, str(getattr(error, "sqlstate", "") or "error"))
        raise
    finally:
        span.end()


def _begin(url: URL, statement: str) -> Span:
    if not get_current_span().is_recording():
        return INVALID_SPAN
    operation, table = _summary(statement)
    target = {
        "db.namespace": url.database,
        "server.address": url.host,
        "server.port": url.port,
        "db.collection.name": table or None,
    }
    attributes: dict[str, str | int] = {
        "db.system.name": "postgresql",
        "db.operation.name": operation,
        **{name: value for name, value in target.items() if value is not None},
    }
    return traces.begin(f"{operation} {table}".strip(), SpanKind.CLIENT, attributes)


def _summary(statement: str) -> tuple[str, str]:
    """Return the operation and the first table in the statement's beginning."""
    start = statement[:_MOST_CHARACTERS].lstrip()
    operation = start.split(None, 1)[0].upper() if start else "QUERY"
    match = _TARGET.search(start)
    return operation, match[1].lower() if match else ""
