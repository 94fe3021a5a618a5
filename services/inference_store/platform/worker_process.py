"""Starts a module as a process of its own, which talks over its stdin and stdout."""

import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from contextlib import suppress
from typing import Final

# Nothing else of the environment: it holds secrets.
_NEEDED: Final = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


def make_command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module."""
    return (sys.executable, "-P", "-m", module)


async def start_worker(*command: str) -> Process:
    """Start a process without secrets."""
    environment = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # each reserves memory, of which a worker has little
    return await create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
    )


async def kill_worker(process: Process) -> None:
    """End a process, at once."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()
