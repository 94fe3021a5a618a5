"""A span for each statement, below the span of the work that it is for.

Named by its operation and table. The statement's text is left out: of ours it would say nothing
new, and where a value stands in it as a literal it would say too much.
"""

import re
from typing import Any

from opentelemetry.trace import INVALID_SPAN, SpanKind, get_current_span
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from . import traces

_TARGET = re.compile(r"\b(?:FROM|INTO|UPDATE|TABLE(?: IF NOT EXISTS)?)\s+\"?(\w+)", re.IGNORECASE)
_MOST_CHARACTERS = 2000


def trace_statements(engine: AsyncEngine) -> None:
    """Trace what goes through this engine; COPY, which goes past it, is traced where it is."""
    url = engine.url
    always: dict[str, str | int] = {"db.system.name": "postgresql"}
    for name, value in (
        ("db.namespace", url.database),
        ("server.address", url.host),
        ("server.port", url.port),
    ):
        if value is not None:
            always[name] = value

    def before(_c: Any, _cursor: Any, statement: str, _p: Any, context: Any, _m: bool) -> None:
        if get_current_span().is_recording():
            operation, table = _summary(statement)
            attributes = {**always, "db.operation.name": operation}
            if table:
                attributes["db.collection.name"] = table
            context.span = traces.begin(f"{operation} {table}".strip(), SpanKind.CLIENT, attributes)

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


def _summary(statement: str) -> tuple[str, str]:
    """Operation and first table, of the statement's beginning."""
    start = statement[:_MOST_CHARACTERS].lstrip()
    operation = start.split(None, 1)[0].upper() if start else "QUERY"
    found = _TARGET.search(start)
    return operation, found[1].lower() if found else ""
