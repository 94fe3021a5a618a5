"""Where `istore` begins: Ctrl-C ends it without a traceback at any moment, also while it imports.

A module beside the package, because whatever is imported of the package imports the client first.
"""

import os

INTERRUPTED = 130
"""What shells know an interrupted command by."""


def main() -> int:
    """Run the command line; its result is the exit code."""
    try:
        import signal  # noqa: PLC0415

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
            signal.signal(signal.SIGINT, end_at_once)
        from inference_store_client.command_line.main import main as run  # noqa: PLC0415

        return run()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def end_at_once(*_: object) -> None:
    """End the process: nothing is to be cleaned up, and the rest of Python's end may be noisy."""
    os._exit(INTERRUPTED)
