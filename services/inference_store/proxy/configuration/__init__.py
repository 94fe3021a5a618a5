"""The proxy's configuration: its upstreams, and how each model's exchanges are captured."""

from .configuration_file import Configuration, build_configuration, read_configuration_file
from .document import WrongConfiguration
from .entries import ModelEntry, UpstreamEntry

__all__ = [
    "Configuration",
    "ModelEntry",
    "UpstreamEntry",
    "WrongConfiguration",
    "build_configuration",
    "read_configuration_file",
]
