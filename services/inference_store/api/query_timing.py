"""Times and traces a query, by its form: what it answers, and the kinds of its conditions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from inference_store.inference.errors import QueryTimeout
from inference_store.platform import traces
from inference_store.platform.metrics import QUERY_SECONDS, QUERY_TIMEOUTS
from inference_store.query.deadline import OutOfTime, Overloaded
from inference_store.query.matching import Query


@contextmanager
def limit_query_time(kind: str, narrow: str, *queries: Query) -> Iterator[None]:
    """Surround a query as `measure_query` does.

    Raises QueryTimeout, which says how to `narrow`, if the query took too long; Overloaded, which
    narrowing does not help, if it had little of its time.
    """
    try:
        with measure_query(kind, *queries):
            yield
    except Overloaded:
        raise
    except OutOfTime:
        QUERY_TIMEOUTS.labels(kind).inc()
        raise QueryTimeout(narrow) from None


@contextmanager
def measure_query(kind: str, *queries: Query) -> Iterator[None]:
    """Surround the statements that find inferences; `kind` is `page`, `count` or `aggregate`.

    Across models it counts once for each.
    """
    form = queries[0].form if queries else "everything"
    began = time.perf_counter()
    attributes: traces.Attributes = {
        "inference_store.query.kind": kind,
        "inference_store.query.form": form,
        "inference_store.query.conditions": len(queries[0].conditions) if queries else 0,
    }
    try:
        with traces.span(f"query {kind}", attributes=attributes):
            yield
    finally:
        QUERY_SECONDS.labels(kind, form).observe(time.perf_counter() - began)
