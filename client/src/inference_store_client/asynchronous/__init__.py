"""The store, asked in an event loop; `sync` has the same as ordinary functions."""

from .export import AsyncExport
from .inference import AsyncInference
from .inferences import AsyncInferences
from .model import AsyncModel
from .store import AsyncStore

__all__ = ["AsyncExport", "AsyncInference", "AsyncInferences", "AsyncModel", "AsyncStore"]
