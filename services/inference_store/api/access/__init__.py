"""Access control: who calls, what the route needs, what it may show. Routes see `Asking`."""

from .asking import Access, Asking, finished
from .authenticator import Authenticator
from .needs import Needs, Over, needs
from .route import GuardedRoute

__all__ = [
    "Access",
    "Asking",
    "Authenticator",
    "GuardedRoute",
    "Needs",
    "Over",
    "finished",
    "needs",
]
