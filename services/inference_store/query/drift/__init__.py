"""Drift: whether the inferences of two windows differ by more than chance, and by how much."""

from .answer import Drift as Drift
from .read import MOST_KEYS as MOST_KEYS
from .read import choose_features as choose_features
from .read import read_window as read_window
from .report import Feature as Feature
from .report import Sampled as Sampled
from .report import compare as compare
