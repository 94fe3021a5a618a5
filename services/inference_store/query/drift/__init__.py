"""Drift: whether the inferences of two windows differ by more than chance, and by how much."""

from .answer import Drift as Drift
from .report import Feature as Feature
from .report import Sampled as Sampled
from .report import compare as compare
