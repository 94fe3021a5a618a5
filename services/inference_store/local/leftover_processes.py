"""Ends processes that an earlier stack of the same folder left running, found by pid files.

On Linux the kernel ends the parts of a killed stack; elsewhere, and where that failed, the next
start does it here. A pid alone proves nothing (the system reuses it), so the start time of the
process and its command are stored, too.
"""

import json
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from .folder import LocalFolder

_SAME_START_SECONDS = 2.0  # the clock of process starts is coarse, and moves with the wall clock
_WAIT_SECONDS = 10.0


def remember(folder: LocalFolder, name: str, pid: int) -> None:
    """Write the pid file of a process just started."""
    with suppress(psutil.NoSuchProcess):  # it ended at once: nothing to remember
        process = psutil.Process(pid)
        record = {"pid": pid, "started": process.create_time(), "command": process.cmdline()[1:]}
        half = _pid_file(folder, name).with_suffix(".new")
        half.write_text(json.dumps(record))
        half.replace(_pid_file(folder, name))


def forget(folder: LocalFolder, name: str) -> None:
    """Remove the pid file of a process that has ended."""
    _pid_file(folder, name).unlink(missing_ok=True)


def end_leftovers(folder: LocalFolder, stop_signals: dict[str, signal.Signals]) -> list[str]:
    """End the processes that still run, in the order of `stop_signals` (name → signal for a regular
    end), and kill those that do not end. Return the names of those that were running."""
    running = []
    for name, stop_signal in stop_signals.items():
        process = _find_leftover(_pid_file(folder, name))
        if process is not None:
            running.append(name)
            end(process, stop_signal)
        forget(folder, name)
    return running


def end(process: psutil.Process, stop_signal: signal.Signals) -> None:
    """Ask `process` to end, wait, then kill it and its children."""
    with suppress(psutil.NoSuchProcess):
        children = process.children(recursive=True)
        process.send_signal(stop_signal)
        _, alive = psutil.wait_procs([process, *children], timeout=_WAIT_SECONDS)
        for remaining in alive:
            with suppress(psutil.NoSuchProcess):
                remaining.kill()
        psutil.wait_procs(alive, timeout=_WAIT_SECONDS)


def _find_leftover(pid_file: Path) -> psutil.Process | None:
    """Return the process of this pid file, if it is still that process."""
    try:
        record = json.loads(pid_file.read_text())
        process = psutil.Process(record["pid"])
        same = (
            abs(process.create_time() - record["started"]) < _SAME_START_SECONDS
            and process.cmdline()[1:] == record["command"]
        )
    except (FileNotFoundError, json.JSONDecodeError, psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return process if same else None


def _pid_file(folder: LocalFolder, name: str) -> Path:
    return folder.run / f"{name}.pid.json"
