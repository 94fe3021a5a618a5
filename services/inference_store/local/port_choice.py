"""Chooses the port of each part: the requested one, that of the last start, or a free one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalStackError
from .ports import HOST, free_from, free_ports, is_free

API, PROXY = "api", "proxy"
DEFAULT_PORTS: Mapping[str, int] = {API: 8080, PROXY: 8090}
"""The ports that README.md and docs/ name, by part."""
_TITLES: Mapping[str, str] = {API: "REST API", PROXY: "proxy"}


class PortTaken(LocalStackError):
    """Another program listens on a requested port."""

    def __init__(self, part: str, port: int) -> None:
        super().__init__(
            f"Port {port} of {HOST}, asked for the {_TITLES.get(part, part)}, is taken by another"
            " program: stop that program, or ask for another port."
        )


@dataclass(frozen=True, slots=True)
class ChosenPorts:
    """The port of each part, and sentences for the user about the choice."""

    ports: Mapping[str, int]
    sentences: Sequence[str]

    def __getitem__(self, part: str) -> int:
        return self.ports[part]


def choose_ports(file: Path, parts: Sequence[str], requested: Mapping[str, int]) -> ChosenPorts:
    """Choose a port for each part, and write them to `file` for the next start.

    `requested`: by part, the ports that must be used. Raises PortTaken.
    """
    last = _read_last(file)
    ports = {part: _require_free(part, port) for part, port in requested.items()}
    for part in parts:
        if part not in ports:
            ports[part] = _choose_port(part, last.get(part), used=frozenset(ports.values()))
    half = file.with_suffix(".new")
    half.write_text(json.dumps(ports, indent=2))
    half.replace(file)
    return ChosenPorts(ports, list(_describe_choice(ports, last)))


def _require_free(part: str, port: int) -> int:
    if not is_free(port):
        raise PortTaken(part, port)
    return port


def _choose_port(part: str, last: int | None, used: frozenset[int]) -> int:
    """Return the last start's port, the default one, or a free one; never one of `used`."""
    for port in (last, DEFAULT_PORTS.get(part)):
        if port is not None and port not in used and is_free(port):
            return port
    if part in DEFAULT_PORTS:
        return free_from(DEFAULT_PORTS[part] + 1, without=used)
    return next(port for port in free_ports(len(used) + 1) if port not in used)


def _read_last(file: Path) -> Mapping[str, int]:
    """Return the ports of the last start; none if the file is missing or unreadable."""
    try:
        return {str(part): int(port) for part, port in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _describe_choice(ports: Mapping[str, int], last: Mapping[str, int]) -> Iterator[str]:
    for part, port in ports.items():
        name, before = _TITLES.get(part, part), last.get(part, DEFAULT_PORTS.get(part, port))
        if port != before and not is_free(before):
            yield f"Port {before} is taken by another program: the {name} listens on {port}."
    for part, wished in DEFAULT_PORTS.items():
        if ports.get(part, wished) != wished:
            yield (
                f"README.md and docs/ write {wished} for the {_TITLES[part]}: in their commands,"
                f" write {ports[part]}."
            )
