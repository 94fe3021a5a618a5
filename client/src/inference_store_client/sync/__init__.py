"""The store, asked by ordinary functions; `asynchronous` has the same, for an event loop."""

from .inference import Inference
from .inferences import Inferences
from .model import Model
from .store import Store

__all__ = ["Inference", "Inferences", "Model", "Store"]
