"""`python -m inference_store.local.installing <lock>`: pip installs a lock and this clone.

It shows how far it is. It runs before anything is installed, and needs only the standard library.
"""

import os
import re
import subprocess
import sys
from collections import deque
from pathlib import Path

from inference_store.local.screen import Screen

_LAST_LINES = 20
_FETCHED_WHEEL = re.compile(r"^\s*(?:Downloading|Using cached) (?:\S*/)?(\S+\.whl) \(([^)]+)\)")
_PINNED = re.compile(r"^[A-Za-z0-9._-]+==", re.MULTILINE)
_UNPACKING = "Installing collected packages: "
# Most modules are never imported; those that are, Python itself compiles then. A lock has all that
# is needed.
_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--no-compile", "--no-deps")
_CLONE = ("--quiet", "--no-build-isolation", "-e", ".", "-e", "./client")


def install(lock: Path, screen: Screen) -> int:
    """Install `lock` into this interpreter's environment; return pip's exit code."""
    # some packages of a lock are only for other systems
    most, fetched = len(_PINNED.findall(lock.read_text())), 0
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        (sys.executable, *_PIP, "--require-hashes", "-r", str(lock)),
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last_lines.append(line.rstrip())
            if wheel := _FETCHED_WHEEL.match(line):
                fetched += 1
                name = wheel[1].split("-")[0]
                screen.progress(f"{fetched} of at most {most} packages, now {name} ({wheel[2]})")
            elif line.startswith(_UNPACKING):
                screen.step(f"unpacking {line.count(',') + 1} packages")
    if pip.returncode:
        screen.say("\n".join(last_lines))
    return pip.returncode


if __name__ == "__main__":
    shown = Screen()
    shown.step(f"installing {sys.argv[1]}")
    with shown.alive():
        code = install(Path(sys.argv[1]), shown)
        if code == 0:
            shown.step("adding this clone")
            code = subprocess.run((sys.executable, *_PIP, *_CLONE), check=False).returncode
    sys.exit(code)
