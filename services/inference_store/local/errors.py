"""Errors that keep the local stack from starting, in sentences for the user."""


class LocalStackError(Exception):
    """The local stack cannot start or go on; the message says why and what to do."""


class PartEnded(LocalStackError):
    """A process of the stack ended by itself."""

    def __init__(self, name: str, exit_code: int | None, log: str, last_lines: str) -> None:
        super().__init__(f"{name} ended with code {exit_code}; the end of {log}:\n{last_lines}")


class PartNotReady(LocalStackError):
    """A process of the stack runs, and does not become ready."""

    def __init__(self, name: str, seconds: float, reason: str, log: str) -> None:
        super().__init__(f"{name} was not ready after {seconds:.0f} s: {reason}; see {log}")
