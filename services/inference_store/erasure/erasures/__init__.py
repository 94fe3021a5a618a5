"""Erasures: one run of deletion each, from what was asked to the last row."""

from .cancelling import cancel, cancelled, unmark
from .erasure import (
    ENDED,
    FINAL,
    STATES,
    Begun,
    Cause,
    Erasure,
    State,
    certifying,
    find,
    listed,
    models_of,
    unfinished,
)
from .progress import advance, begin_deleting, count, failed, finish, marked, state_of
from .requests import ask, enqueue_arrivals
from .waiver import request_waiver

__all__ = [
    "ENDED",
    "FINAL",
    "STATES",
    "Begun",
    "Cause",
    "Erasure",
    "State",
    "advance",
    "ask",
    "begin_deleting",
    "cancel",
    "cancelled",
    "certifying",
    "count",
    "enqueue_arrivals",
    "failed",
    "find",
    "finish",
    "listed",
    "marked",
    "models_of",
    "request_waiver",
    "state_of",
    "unfinished",
    "unmark",
]
