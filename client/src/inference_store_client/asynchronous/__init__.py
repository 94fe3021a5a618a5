"""The store, asked in an event loop; `sync` has the same as ordinary functions."""

from .inference import AsyncInference
from .inferences import AsyncInferences
from .model import AsyncModel
from .store import AsyncStore

__all__ = ["AsyncInference", "AsyncInferences", "AsyncModel", "AsyncStore"]
