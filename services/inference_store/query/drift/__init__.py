"""Drift: whether the inferences of two windows differ by more than chance, and by how much."""

from .answer import Drift as Drift
from .read import Window as Window
from .read import choose_features as choose_features
from .read import read_windows as read_windows
from .report import compare as compare
