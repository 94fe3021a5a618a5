"""Access control: who calls, what the route needs, what it may show. Routes see `Asking`."""

from . import session_cookie
from .authenticator import Authenticator
from .needs import Needs, Over, needs
from .request_access import Access, Asking, finished
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
    "session_cookie",
]
