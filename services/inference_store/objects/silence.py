"""Refuses at once what a silent S3 would keep waiting."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from inference_store.inference.errors import ObjectStoreUnavailable

_REFUSED_SECONDS: Final = 1.0
P = ParamSpec("P")
T = TypeVar("T")


class Silence:
    """Whether S3 has just kept a request waiting until it timed out.

    A frozen server holds as many requests as there are threads, one time-out long. All others,
    which wait for a thread or for a lock, would wait for one time-out each: for a second after it
    they are refused without asking.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Ask, and note a silence. Raises ObjectStoreUnavailable during one."""
        began = time.monotonic()
        if began < self._until:
            raise ObjectStoreUnavailable(
                f"the object store did not answer within {self._seconds:g} s"
            )
        try:
            yield
        except ObjectStoreUnavailable:
            now = time.monotonic()
            if now - began >= self._seconds:
                self._until = now + _REFUSED_SECONDS
            raise


class _Asking(Protocol):
    silence: Silence


S = TypeVar("S", bound=_Asking)


def asked(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Wrap a method that calls S3."""

    @wraps(method)
    def ask(self: S, /, *arguments: P.args, **named: P.kwargs) -> T:
        with self.silence.limited():
            return method(self, *arguments, **named)

    return ask
