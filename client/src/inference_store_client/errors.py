"""Everything that can go wrong: each is a StoreError."""

import json
import warnings
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Final

from inference_store_client.values.answers import Problem


class StoreError(Exception):
    """Anything that the client or the store refuses or cannot do."""

    is_transient = False
    """Whether the same request may succeed later."""
    retry_after_seconds = 0.0


class SettingsError(StoreError):
    """The store's address or key is missing or cannot be used."""


class SignInFailed(StoreError):
    """Nobody signed in at the issuer, or the sign-in has ended; it names the remedy."""


class FilterError(StoreError, TypeError):
    """A use of an expression that Python would read as something else; it names the remedy."""


class ReplayFailed(StoreError):
    """A replay failed, or was cancelled."""


class ExportFailed(StoreError):
    """An export failed, or its parts are deleted or damaged."""


class NotIncluded(StoreError, LookupError):
    """A part of an inference that `include` did not ask for."""


class ConnectionFailed(StoreError):
    """The store cannot be reached, or the connection broke."""

    is_transient = True


class StreamIncomplete(ConnectionFailed):
    """A stream broke off and could not be resumed: what came before is not everything."""


class UnexpectedAnswer(StoreError):
    """The answer is not what the API promises."""


class Redirected(UnexpectedAnswer):
    """The store answers at another address, where a key is not sent."""


class Refused(StoreError):
    """The API refused the request. `problem` has its reasons; the text shows them."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.describe())
        self.problem = problem

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status


class InvalidRequest(Refused):
    """What was asked makes no sense (400, 406, 413, 415, 422, 501)."""


class Unauthorized(Refused):
    """No key or token was sent, or it is not valid (401)."""


class Forbidden(Refused):
    """A right is missing (403)."""


class NotFound(Refused):
    """There is no such thing (404)."""


class Conflict(Refused):
    """Something else is in the way (409, 412)."""


class Gone(Refused):
    """It was deleted (410)."""


class Unavailable(Refused):
    """The store could not answer now (503)."""


class TooManyRequests(Unavailable):
    """The caller asks more often than it may (429)."""


_BY_STATUS: Final[Mapping[int, type[Refused]]] = {
    **dict.fromkeys((400, 406, 413, 415, 422, 501), InvalidRequest),
    **dict.fromkeys((409, 412), Conflict),
    **dict.fromkeys((502, 503, 504), Unavailable),
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    410: Gone,
    429: TooManyRequests,
}


def make_refusal(problem: Problem) -> Refused:
    """Return the most specific error for a problem."""
    return _BY_STATUS.get(problem.status, Refused)(problem)


# What the store remarks about a question, as Python warnings.

_HEADER: Final = "inference-store-warnings"


class StoreWarning(UserWarning):
    """A remark of the store: the question is answered, and may not mean what was intended."""


def warn(texts: Iterable[str]) -> None:
    """Issue each text as a StoreWarning."""
    for text in texts:
        warnings.warn(text, StoreWarning, stacklevel=2)


def warn_of_header(headers: Mapping[str, str]) -> None:
    """Issue the warnings of an answer that has no room for them, such as CSV."""
    text = headers.get(_HEADER, "[]")
    try:
        texts = json.loads(text)
    except ValueError:  # something on the way has cut it
        texts = text
    warn(map(str, texts) if isinstance(texts, list) else [text])


# The libraries of extras: imported when they are needed, and how they are installed.


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an extra. Raises SettingsError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError:
        install = f"python -m pip install './client[{extra}]'"
        raise SettingsError(f"this needs {module}: in the source tree, {install}") from None
