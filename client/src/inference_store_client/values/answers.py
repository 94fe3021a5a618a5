"""Answers about many inferences."""

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from .problems import Problem

InferenceT_co = TypeVar("InferenceT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTime:
    """A relative time of the filter, and the instant that it was taken for."""

    expression: str
    instant: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCount:
    """How many inferences match."""

    count: int
    warnings: tuple[str, ...]
    resolved: tuple[ResolvedTime, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[InferenceT_co]):
    """A page of inferences. An empty page with a `next` is not the end."""

    items: tuple[InferenceT_co, ...]
    next: str | None
    """The cursor of the next page; None: this is the last."""
    searched_back_to: datetime | None
    """Set if time ran out: how far the search came."""
    warnings: tuple[str, ...]
    resolved: tuple[ResolvedTime, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The last line of a stream."""

    count: int
    next: str | None
    warnings: tuple[str, ...]
    problem: Problem | None
    """Why the stream ended early."""
    resolved: tuple[ResolvedTime, ...] | None = None
