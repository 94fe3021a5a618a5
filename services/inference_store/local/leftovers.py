"""What an earlier stack of the same folder left running: found by pid files, and ended.

On Linux the kernel ends the parts of a killed stack; elsewhere, and where that failed, the next
start does it here. A pid alone proves nothing (the system gives it out again), so the time the
process started and its command are kept beside it.
"""

import json
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from .folder import LocalFolder

_SAME_START_SECONDS = 2.0  # the clock of process starts is coarse, and moves with the wall clock
_PATIENCE_SECONDS = 10.0


def remember(folder: LocalFolder, name: str, pid: int) -> None:
    """Write the pid file of a process just started."""
    with suppress(psutil.NoSuchProcess):  # it ended at once: nothing to remember
        process = psutil.Process(pid)
        known = {"pid": pid, "started": process.create_time(), "command": process.cmdline()[1:]}
        half = _pid_file(folder, name).with_suffix(".new")
        half.write_text(json.dumps(known))
        half.replace(_pid_file(folder, name))


def forget(folder: LocalFolder, name: str) -> None:
    """Remove the pid file of a process that has ended."""
    _pid_file(folder, name).unlink(missing_ok=True)


def end_leftovers(folder: LocalFolder, stop_signals: dict[str, signal.Signals]) -> list[str]:
    """End, in the order of `stop_signals` (name → signal that asks for a good end), what still
    runs, by kill when asking does not help. Answers the names of what was found running."""
    found = []
    for name, stop_signal in stop_signals.items():
        process = _leftover(_pid_file(folder, name))
        if process is not None:
            found.append(name)
            end(process, stop_signal)
        forget(folder, name)
    return found


def end(process: psutil.Process, stop_signal: signal.Signals) -> None:
    """Ask `process` to end, wait, then kill it and its children."""
    with suppress(psutil.NoSuchProcess):
        children = process.children(recursive=True)
        process.send_signal(stop_signal)
        _, alive = psutil.wait_procs([process, *children], timeout=_PATIENCE_SECONDS)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(alive, timeout=_PATIENCE_SECONDS)


def _leftover(pid_file: Path) -> psutil.Process | None:
    """The process of this pid file, if it is still that process."""
    try:
        known = json.loads(pid_file.read_text())
        process = psutil.Process(known["pid"])
        same = (
            abs(process.create_time() - known["started"]) < _SAME_START_SECONDS
            and process.cmdline()[1:] == known["command"]
        )
    except (FileNotFoundError, json.JSONDecodeError, psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return process if same else None


def _pid_file(folder: LocalFolder, name: str) -> Path:
    return folder.run / f"{name}.pid.json"
