"""Aggregates: what is asked, and what is answered."""

from .answers import ShownAggregate
from .questions import AggregateAcross, InferenceAggregate

__all__ = ["AggregateAcross", "InferenceAggregate", "ShownAggregate"]
