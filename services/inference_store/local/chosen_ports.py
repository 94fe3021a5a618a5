"""Where each part listens: as asked, else as at the last start, else where a port is free."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalStackError
from .ports import HOST, free_from, free_ports, is_free

API, PROXY = "api", "proxy"
WISHED: Mapping[str, int] = {API: 8080, PROXY: 8090}
"""The ports that README.md and docs/ name, by part."""
_SHOWN: Mapping[str, str] = {API: "REST API", PROXY: "proxy"}


class PortTaken(LocalStackError):
    """Another program listens on a port that was asked for."""

    def __init__(self, part: str, port: int) -> None:
        super().__init__(
            f"Port {port} of {HOST}, asked for the {_SHOWN.get(part, part)}, is taken by another"
            " program: stop that program, or ask for another port."
        )


@dataclass(frozen=True, slots=True)
class ChosenPorts:
    """The port of each part, and what the person in front of it should know of the choice."""

    ports: Mapping[str, int]
    sentences: Sequence[str]

    def __getitem__(self, part: str) -> int:
        return self.ports[part]


def choose_ports(file: Path, parts: Sequence[str], asked: Mapping[str, int]) -> ChosenPorts:
    """Choose a port for each part, and write them to `file` for the next start.

    `asked`: by part, those that must be taken as they are. Raises PortTaken.
    """
    last = _last(file)
    ports = {part: _asked(part, port) for part, port in asked.items()}
    for part in parts:
        if part not in ports:
            ports[part] = _port(part, last.get(part), taken=frozenset(ports.values()))
    half = file.with_suffix(".new")
    half.write_text(json.dumps(ports, indent=2))
    half.replace(file)
    return ChosenPorts(ports, list(_sentences(ports, last)))


def _asked(part: str, port: int) -> int:
    if not is_free(port):
        raise PortTaken(part, port)
    return port


def _port(part: str, last: int | None, taken: frozenset[int]) -> int:
    """The last start's, the wished one, or one that is free; never one of `taken`."""
    for port in (last, WISHED.get(part)):
        if port is not None and port not in taken and is_free(port):
            return port
    if part in WISHED:
        return free_from(WISHED[part] + 1, without=taken)
    return next(port for port in free_ports(len(taken) + 1) if port not in taken)


def _last(file: Path) -> Mapping[str, int]:
    """The ports of the last start; none where the file is missing or cannot be read."""
    try:
        return {str(part): int(port) for part, port in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _sentences(ports: Mapping[str, int], last: Mapping[str, int]) -> Iterator[str]:
    for part, port in ports.items():
        name, before = _SHOWN.get(part, part), last.get(part, WISHED.get(part, port))
        if port != before and not is_free(before):
            yield f"Port {before} is taken by another program: the {name} listens on {port}."
    for part, wished in WISHED.items():
        if ports.get(part, wished) != wished:
            yield (
                f"README.md and docs/ write {wished} for the {_SHOWN[part]}: in their commands,"
                f" write {ports[part]}."
            )
