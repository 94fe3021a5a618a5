"""One stage of work: timed as a metric, and a span if traces are on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Histogram

from . import traces


@contextmanager
def stage(histogram: Histogram, name: str) -> Iterator[None]:
    """Time the block under the histogram's label `name`, even if it fails."""
    began = time.perf_counter()
    try:
        with traces.span(name):
            yield
    finally:
        histogram.labels(name).observe(time.perf_counter() - began)
