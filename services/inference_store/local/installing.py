"""`python -m inference_store.local.installing <lock>`: pip installs a lock and this clone.

It shows how far it is.

It runs before anything is installed, and needs only the standard library.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TextIO

from inference_store.local.screen import Screen

_LOOK_SECONDS = 0.2
_LAST_LINES = 20
_FETCHED_WHEEL = re.compile(r"^\s*(?:Downloading|Using cached) (?:\S*/)?(\S+\.whl) \(([^)]+)\)")
_PINNED = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)
_UNPACKING = "Installing collected packages: "
# Most modules are never imported; those that are, Python itself compiles then. A lock has all that
# is needed.
_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--no-compile", "--no-deps")
_CLONE = ("--quiet", "--no-build-isolation", "-e", ".", "-e", "./client")


@dataclass(slots=True)
class Progress:
    """The progress of pip, by the lines that it has printed."""

    most: int
    """Packages in the lock; some are only for other systems."""
    folder: Path
    """The folder that packages are unpacked to."""
    fetched: int = 0
    newest: str = ""
    to_unpack: int = 0
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    def see(self, line: str) -> None:
        """Read another line."""
        self.last_lines.append(line.rstrip())
        if wheel := _FETCHED_WHEEL.match(line):
            self.fetched += 1
            self.newest = f"{wheel[1].split('-')[0]} ({wheel[2]})"
        elif line.startswith(_UNPACKING):
            self.to_unpack = len(line.split(","))

    def __str__(self) -> str:
        if self.to_unpack:
            there = sum(1 for _ in self.folder.glob("*.dist-info"))
            return f"unpacking: {min(there, self.to_unpack)} of {self.to_unpack} packages"
        if self.fetched:
            return f"fetching: {self.fetched} of at most {self.most} packages, now {self.newest}"
        return f"looking for {self.most} packages"


def install(lock: Path, screen: Screen) -> int:
    """Install `lock` into this interpreter's environment; return pip's exit code."""
    progress = Progress(len(_PINNED.findall(lock.read_text())), Path(sysconfig.get_path("purelib")))
    command = (sys.executable, *_PIP, "--require-hashes", "-r", str(lock))
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        reader = Thread(target=_read, args=(pip.stdout, progress))
        reader.start()
        while reader.is_alive():
            reader.join(_LOOK_SECONDS)
            screen.progress(str(progress))
    if pip.returncode:
        screen.say("\n".join(progress.last_lines))
    else:
        screen.step(f"{progress.to_unpack} packages installed")
    return pip.returncode


def install_clone(screen: Screen) -> int:
    """Install the packages of the current folder; return pip's exit code."""
    screen.step("adding this clone")
    return subprocess.run((sys.executable, *_PIP, *_CLONE), check=False).returncode


def _read(output: TextIO, progress: Progress) -> None:
    for line in output:
        progress.see(line)


if __name__ == "__main__":
    shown = Screen()
    shown.step(f"installing {sys.argv[1]}")
    with shown.alive():
        code = install(Path(sys.argv[1]), shown) or install_clone(shown)
    sys.exit(code)
