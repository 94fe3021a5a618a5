"""Standard output whose reader has gone, as in `| head`."""

import select
import sys
from typing import Final

CLOSED_PIPE: Final = 141
"""What shells know a command by whose reader has gone."""


def raise_if_reader_is_gone(error: BaseException) -> None:
    """Raise the error again if it only says that the reader of standard output has gone: no server
    is unavailable then."""
    if isinstance(error, BrokenPipeError) and is_reader_gone():
        raise error


def is_reader_gone() -> bool:
    """Return whether the reader of standard output is gone."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in output.poll(0))
