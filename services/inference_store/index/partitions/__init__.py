"""The spans of time that the partitioned tables are cut into, and their life.

A span is made before the first event that falls into it is written, under an advisory lock
and in a transaction of its own: a crash leaves an empty span. Widths adapt to how full the
last spans became, so that one holds near `target` inferences; old times get wide spans.
"""

from .dropping import drop
from .making import AHEAD, create, make_ahead, make_missing
from .merging import merge
from .span import Span, Spans, lock_catalogue, spans
from .statistics import analyse
from .vacuum import tell

__all__ = [
    "AHEAD",
    "Span",
    "Spans",
    "analyse",
    "create",
    "drop",
    "lock_catalogue",
    "make_ahead",
    "make_missing",
    "merge",
    "spans",
    "tell",
]
