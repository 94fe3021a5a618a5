"""The examples of docs/how-to/command-line.md print what they show there, on a terminal."""

import asyncio
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store_client.command_line.main import COMMANDS
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.hallway import make_frames
from tests.integration.stored_inferences import store

from .istore import MODULE, Istore

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "command-line.md"
_OVERWRITTEN = re.compile(r"\r[^\r\n]*\x1b\[K")
"""A line of progress, which a slow machine shows for a moment."""
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def list_examples() -> Iterator[tuple[str, str]]:
    """Yield each command of the page with what it prints."""
    for block in _BLOCK.findall(_PAGE.read_text()):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = example.partition("\n")
            yield command, printed


def run_on_terminal(command: str, environment: dict[str, str], folder: Path) -> str:
    """Return what a shell shows on a terminal of 150 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", command],
        stdout=theirs,
        stderr=theirs,
        env=environment | {"COLUMNS": "150"},
        cwd=folder,
    )
    os.close(theirs)
    shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    process.wait()
    return _OVERWRITTEN.sub("", shown.decode()).replace("\r", "")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other side has closed it
        return b""


def matches(expected: str, shown: str) -> bool:
    """Return whether it was shown; `…` stands for anything."""
    pattern = ".*?".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, shown, re.DOTALL) is not None


async def test_every_example_prints_what_the_page_shows(
    make_app: MakeApp, engine: AsyncEngine, tmp_path: Path
) -> None:
    await store(engine, *make_frames())
    script = tmp_path / "istore"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {MODULE} "$@"\n')
    script.chmod(0o700)
    async with serve_app(make_app()) as http:
        environment = Istore(str(http.base_url), tmp_path).environment
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
        differences = [
            f"$ {command}\n{shown}"
            for command, printed in list_examples()
            if not matches(
                printed,
                shown := await asyncio.to_thread(run_on_terminal, command, environment, tmp_path),
            )
        ]
    assert not differences, "\n".join(differences)


def test_the_page_names_every_command() -> None:
    page = _PAGE.read_text()
    assert len([*list_examples()]) > 6
    assert [name for name in COMMANDS if f"`{name}`" not in page] == []
