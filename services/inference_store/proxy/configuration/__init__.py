"""The proxy's configuration: what stands behind it, and how each model's exchanges are captured."""

from .document import WrongConfiguration
from .entries import ModelEntry, UpstreamEntry
from .reading import Configuration, configuration_of, configuration_of_one

__all__ = [
    "Configuration",
    "ModelEntry",
    "UpstreamEntry",
    "WrongConfiguration",
    "configuration_of",
    "configuration_of_one",
]
