"""A clock that stands still, for modules that read the time."""

import time


class CallableClock:
    """Stands in for `time.monotonic` where a class takes its clock as an argument."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class StoppedClock:
    """Stands in for the module `time`. A test moves it, so that no machine is too slow or too fast.

    `monkeypatch.setattr(module, "time", StoppedClock())`
    """

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.busy = 0.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        """Return for how many seconds the process has kept a processor busy."""
        return self.busy
