"""Runs the command line of users as a process of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "client" / "src"
MODULE = "inference_store_client.command_line.main"


@dataclass(frozen=True, slots=True)
class Istore:
    """The command line, with the address of a store and a home of its own in its environment."""

    url: str
    home: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        outer = {name: value for name, value in os.environ.items() if "INFERENCE_STORE" not in name}
        own = {"INFERENCE_STORE_URL": self.url, "HOME": str(self.home), "PYTHONPATH": str(SOURCE)}
        return outer | own | self.variables

    async def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(self._run, words)

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", MODULE, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", MODULE, *words]
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *command, env=self.environment, stdout=pipe, stderr=pipe
        )
