"""Ports are given to one process of tests at a time."""

import subprocess
import sys

from tests.servers import ports

_TAKE = """
from tests.servers import ports
print(ports._reserve({port}), flush=True)
input()
"""


def test_a_port_is_given_once() -> None:
    numbers = [ports.free_port() for _ in range(50)]
    assert len(set(numbers)) == 50


def test_another_process_is_not_given_it() -> None:
    port = ports.free_port()
    command = [sys.executable, "-c", _TAKE.format(port=port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "False\n"
        other.communicate("\n", timeout=60)


def test_a_process_that_ends_gives_its_ports_back() -> None:
    port = ports.free_port() + 20_000  # never handed out
    command = [sys.executable, "-c", _TAKE.format(port=port)]
    ended = subprocess.run(
        command, input="\n", stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    assert ended.stdout == "True\n"
    assert ports._reserve(port)
