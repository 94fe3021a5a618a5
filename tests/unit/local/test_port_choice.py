"""The demo keeps its ports between starts, and says if one had to change."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference_store.local.port_choice import DEFAULT_PORTS, PortTaken, choose_ports
from inference_store.local.ports import HOST, free_ports, is_free

PARTS = ("api", "proxy", "s3")


@contextmanager
def occupy(port: int) -> Iterator[None]:
    """Occupy the port as another program does."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, port))
        other.listen()
        yield


@pytest.fixture
def requested() -> dict[str, int]:
    """Return two ports that no other test takes: 8080 may be taken on this machine."""
    return dict(zip(("api", "proxy"), free_ports(2), strict=True))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ports.json"


def test_ports_are_those_of_the_last_start(file: Path, requested: dict[str, int]) -> None:
    first = choose_ports(file, PARTS, requested)
    assert len(set(first.ports.values())) == len(PARTS)
    second = choose_ports(file, PARTS, {})
    assert second.ports == first.ports
    assert not [sentence for sentence in second.sentences if "taken" in sentence]


def test_reports_a_taken_port_and_keeps_the_next(file: Path, requested: dict[str, int]) -> None:
    choose_ports(file, PARTS, requested)
    with occupy(requested["api"]):
        second = choose_ports(file, PARTS, {})
    assert second["api"] != requested["api"]
    assert second["proxy"] == requested["proxy"]
    sentence = f"Port {requested['api']} is taken by another program: the REST API listens on"
    assert f"{sentence} {second['api']}." in second.sentences
    assert choose_ports(file, PARTS, {})["api"] == second["api"]


def test_says_which_port_replaces_that_of_the_readme(file: Path, requested: dict[str, int]) -> None:
    unasked = choose_ports(file.with_name("other.json"), PARTS, {})
    chosen = choose_ports(file, PARTS, requested)
    for part, wished in DEFAULT_PORTS.items():
        assert unasked[part] == wished or not is_free(wished)
        (sentence,) = (line for line in chosen.sentences if f"write {wished}" in line)
        assert sentence.endswith(f"write {requested[part]}.")


def test_refuses_a_requested_port_that_is_taken(file: Path, requested: dict[str, int]) -> None:
    refused = pytest.raises(PortTaken, match=f"Port {requested['api']} .*REST API")
    with occupy(requested["api"]), refused:
        choose_ports(file, PARTS, requested)
    assert not file.exists()
    # one that cannot be read is no trouble
    file.write_text("[")
    assert choose_ports(file, PARTS, requested)["api"] == requested["api"]
