"""The store, asked by ordinary functions; `asynchronous` has the same, for an event loop."""

from .export import Export
from .inference import Inference
from .inferences import Inferences
from .model import Model
from .store import Store

__all__ = ["Export", "Inference", "Inferences", "Model", "Store"]
