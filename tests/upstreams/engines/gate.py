"""Holds parts of an answer back until a test lets them go: see tests/upstreams/gate.py."""

import asyncio
from pathlib import Path

_PAUSE_SECONDS = 0.02


async def wait_for(folder: str | None, number: int) -> None:
    """Wait for the file of that number in a folder. Part 0 goes at once, and so do all without a
    folder."""
    while True:
        if not folder or not number or _is_there(folder, number):
            return
        await asyncio.sleep(_PAUSE_SECONDS)


def _is_there(folder: str, number: int) -> bool:
    return Path(folder, str(number)).exists()
