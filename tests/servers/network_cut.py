"""A network with nothing but loopback: what runs in it reaches no other machine."""

import subprocess
from pathlib import Path

from .versions import MissingServer

CUT = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Begins a command whose process, and all that it starts, have such a network."""


def list_interfaces(pid: int) -> list[str]:
    """The network interfaces that a process has."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines]


def write_entering(program: str, pid: int, folder: Path) -> Path:
    """Write a program that runs another one in the network of a process."""
    entering = folder / f"enter-{Path(program).name}"
    entering.write_text(f'#!/bin/sh\nexec nsenter --net=/proc/{pid}/ns/net {program} "$@"\n')
    entering.chmod(0o755)
    return entering


def find_network_cut() -> Path:
    """Where `unshare` made one. Raises MissingServer if that is not allowed."""
    try:
        subprocess.run([*CUT, "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        reason = getattr(exc, "stderr", None) or str(exc)
        raise MissingServer(f"a network namespace takes root: {reason.strip()}") from exc
    return Path(CUT[0])
