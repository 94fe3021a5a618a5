"""The examples of docs/how-to/client.md and command-line.md print what they show there."""

import asyncio
import doctest
import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp

from .istore import MODULE, Istore

pytestmark = pytest.mark.usefixtures("frames")
_PAGES = Path(__file__).parents[3] / "docs" / "how-to"
_CLIENT, _COMMAND_LINE = _PAGES / "client.md", _PAGES / "command-line.md"
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_OVERWRITTEN = re.compile(r"\r[^\r\n]*\x1b\[K")
"""A line of progress, which a slow machine shows for a moment."""
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_examples(page: Path, url: str, *, least: int, options: int = 0) -> str:
    """Run a page's examples, so many at least; return what differs."""
    text = page.read_text().replace("http://127.0.0.1:8080", url)
    text = text.replace("\n```", "\n\n")  # a fence ends what is printed
    text += "\n>>> store.close()\n"
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert len(test.examples) > least
    printed = io.StringIO()
    doctest.DocTestRunner(optionflags=options).run(test, out=printed.write)
    return printed.getvalue()


async def test_every_example_of_the_client_prints_what_the_page_shows(make_app: MakeApp) -> None:
    # what the api logs here is not what the page shows
    async with serve_app(make_app()) as http:
        url = str(http.base_url).rstrip("/")
        with capture_logs():
            differences = await asyncio.to_thread(
                run_examples, _CLIENT, url, least=20, options=_OPTIONS
            )
    assert not differences, differences


def list_examples() -> Iterator[tuple[str, str]]:
    for block in _BLOCK.findall(_COMMAND_LINE.read_text()):
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


async def test_every_example_of_the_command_line_prints_what_the_page_shows(
    make_app: MakeApp, tmp_path: Path
) -> None:
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
    assert len(list(list_examples())) > 6
    assert not differences, "\n".join(differences)
