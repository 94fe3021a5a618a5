"""How a command ends: its exit code, and what is said if it fails."""

import math
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import TextIOWrapper
from typing import Any, Final, TextIO

from inference_store_client.errors import Refused, SettingsError, StoreError, Unauthorized
from inference_store_client.tables import make_printable
from inference_store_client.values.answers import Problem
from inference_store_client_entry import INTERRUPTED, end_at_once

FAILED: Final = 1
CALLED_WRONGLY: Final = 2
CLOSED_PIPE: Final = 141
"""What shells know a command by whose reader has gone."""
_KILLED: Final = 128
"""Shells add the number of the signal."""
_REMOVAL_SECONDS: Final = 2.0
_ENDING: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def end_quietly(run: Callable[[], int]) -> int:
    """Run a command; return its exit code. An error is a sentence on standard error."""
    _prepare_outputs()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _show_warning
        try:
            status = _run_and_flush(run)
        except KeyboardInterrupt as interrupt:
            _say_notes(interrupt)
            return INTERRUPTED
        except SystemExit as end:
            _say_notes(end)
            raise
        except BrokenPipeError:
            _discard(sys.stdout)  # the reader has enough, such as `| head`
            return CLOSED_PIPE
        except StoreError as error:
            say(describe(error))
            return CALLED_WRONGLY if isinstance(error, SettingsError) else FAILED
        except OSError as error:  # of a file, or of its disk
            say(f"{error.filename or 'standard output'}: {error.strerror or error}")
            _say_notes(error)
            if error.filename is None:
                _discard(sys.stdout)
            return FAILED
    return status


def _prepare_outputs() -> None:
    """Open what the command was started without (`>&-`), so that nothing else gets its number; and
    let an encoding such as Latin-1 escape what it does not have."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 -- until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Write what a stream still has to nowhere: Python tries again at its end, and ends with 120
    if that fails."""
    with suppress(OSError):  # it has no number, as in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run_and_flush(run: Callable[[], int]) -> int:
    """Run a command, which may exit as after `--help`; what it printed is written here, so that an
    error is noticed."""
    try:
        status = run()
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return status


@contextmanager
def interruptible() -> Iterator[None]:
    """Let signals that end `istore` raise an exception, so that a command removes what it had
    begun to write."""
    if signal.getsignal(signal.SIGINT) is not end_at_once:  # the process is somebody else's
        yield
        return
    ending = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    before: dict[int, Any] = {signal.SIGINT: end_at_once, **dict.fromkeys(ending, signal.SIG_DFL)}
    interruption = _Interruption()
    for number in before:
        signal.signal(number, interruption)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Interruption:
    """Raises an exception for a signal. Those that come within seconds of it are ignored: they
    would interrupt the removal of what a command had begun to write."""

    def __init__(self) -> None:
        self._ends = -math.inf

    def __call__(self, number: int, _: object) -> None:
        now = time.monotonic()
        if now < self._ends:
            return
        self._ends = now + _REMOVAL_SECONDS
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(_KILLED + number)


def say(text: str) -> None:
    """Say something to people: on standard error, since standard output is for results. Nobody
    may be there to hear it."""
    try:
        print(make_printable(text, kept="\n"), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def describe(error: StoreError) -> str:
    """Return what went wrong, and the remedy where it is known."""
    text = "\n".join([_describe(error), *_list_notes(error)])
    if isinstance(error, Unauthorized):
        text += "\nGive a key (INFERENCE_STORE_KEY), or sign in: istore login"
    return text


def _say_notes(error: BaseException) -> None:
    for note in _list_notes(error):
        say(note)


def _list_notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def _describe(error: StoreError) -> str:
    if not isinstance(error, Refused):
        return str(error)
    return name_options(error.problem).describe()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"warning: {message}")


_OPTIONS: Final[Mapping[str, str]] = {
    "received_at.from": "--since",
    "received_at.to": "--until",
    "sort": "--sort",
    "fields": "--columns",
    "unknown_keys": "--unknown-keys",
    "limit": "--limit",
    "sample.size": "--size",
    "sample.seed": "--seed",
    "expires_in": "--expires-in",
    "confirm": "--confirm",
    "inference_ids": "--id",
    "subject": "--subject",
}
_INSIDE: Final = re.compile(r"[.\[]")


def name_options(problem: Problem) -> Problem:
    """Return the problem with the names of options in place of the API's fields."""
    errors = tuple(replace(fault, path=_find(fault.path)) for fault in problem.errors)
    return replace(problem, detail=_replace_paths(problem), errors=errors)


def _replace_paths(problem: Problem) -> str:
    """Return the detail, which may begin with the path of a fault, or quote a field."""
    detail = problem.detail
    for fault in problem.errors:
        detail = detail.replace(f"{fault.path}: ", f"{_find(fault.path)}: ")
    for name, option in _OPTIONS.items():
        detail = detail.replace(f"`{name}`", f"`{option}`")
    return detail


def _find(path: str) -> str:
    """Return the option of a field or of what is in it (`fields[0]`); else the path."""
    known = _OPTIONS.get(path)
    return known or _OPTIONS.get(_INSIDE.split(path, maxsplit=1)[0], path)
