"""Access control: who asks, what the route needs, what it may show. `Asking` is what routes see."""

from .asking import Access, Asking, finished
from .gate import Gate
from .needs import Needs, Over, needs
from .route import GuardedRoute

__all__ = ["Access", "Asking", "Gate", "GuardedRoute", "Needs", "Over", "finished", "needs"]
