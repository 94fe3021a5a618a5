"""Chains of kills: one world, a process killed at one failpoint after the other, one judgement.

`KILLS=each` makes each failpoint an item in a world of its own; `KILL=<failpoint>` runs that one.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from signal import SIGKILL

import pytest

from tests.service_process import Service

_CODES = {128 + SIGKILL, -SIGKILL}


class KillChain:
    """Failpoints to be killed at, in this order: each step of the iteration must end in a kill."""

    def __init__(self, failpoints: Sequence[str]) -> None:
        self.failpoints = tuple(failpoints)
        self.killed: list[str] = []
        self._current = ""

    def __iter__(self) -> Iterator[str]:
        self.killed.clear()
        for failpoint in self.failpoints:
            self._current = failpoint
            yield failpoint
            assert self.killed[-1:] == [failpoint], f"nothing was killed at {failpoint}"
        assert tuple(self.killed) == self.failpoints

    def check_killed(self, code: int, output: str) -> None:
        """Check the exit code of the process whose environment has the current failpoint."""
        assert code in _CODES, f"not killed at {self._current}: it ended with {code}\n{output}"
        self.killed.append(self._current)

    async def wait_until_killed(self, service: Service) -> None:
        """Wait until the current failpoint has killed a service."""
        code = await asyncio.to_thread(service.process.wait, 600)
        self.check_killed(code, service.text[-4000:])


def chain_kills(failpoints: Sequence[str], *, argument: str = "kills") -> pytest.MarkDecorator:
    """Give a test its chain: all of these failpoints, or each one, or the one that KILL names.

    @pytest.mark.kills
    @chain_kills(SOME_FAILPOINTS)
    async def test_a_kill_loses_nothing(kills: KillChain, …) -> None:
        for kill in kills:
            …  # give the process something to do, so that it passes the failpoint
            service = Service(name, environment | {"INFERENCE_STORE_FAILPOINT": kill}, folder)
            await kills.wait_until_killed(service)
        …  # start it without a failpoint, and judge once
    """
    one = os.environ.get("KILL")
    if one is not None or os.environ.get("KILLS") == "each":
        chosen = [name for name in failpoints if one in {None, name}]
        chains = [pytest.param(KillChain([name]), id=name) for name in chosen]
    else:
        # each of its processes may take as long as another test
        patient = pytest.mark.timeout(900 * len(failpoints))
        chains = [pytest.param(KillChain(failpoints), id="all", marks=patient)]
    return pytest.mark.parametrize(argument, chains)
