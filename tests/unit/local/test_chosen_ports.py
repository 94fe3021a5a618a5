"""The demo's ports stay from start to start, and it says where one had to change."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference_store.local.chosen_ports import WISHED, PortTaken, choose_ports
from inference_store.local.ports import HOST, free_ports, is_free

PARTS = ("api", "proxy", "s3")


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Another program that has the port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, port))
        other.listen()
        yield


@pytest.fixture
def asked() -> dict[str, int]:
    """Two ports that no other test takes: 8080 may be taken on this machine."""
    return dict(zip(("api", "proxy"), free_ports(2), strict=True))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ports.json"


def test_ports_are_those_of_the_last_start(file: Path, asked: dict[str, int]) -> None:
    first = choose_ports(file, PARTS, asked)
    assert len(set(first.ports.values())) == len(PARTS)
    second = choose_ports(file, PARTS, {})
    assert second.ports == first.ports
    assert not [said for said in second.sentences if "taken" in said]


def test_a_port_that_is_taken_is_said_and_the_next_one_stays(
    file: Path, asked: dict[str, int]
) -> None:
    choose_ports(file, PARTS, asked)
    with listening(asked["api"]):
        second = choose_ports(file, PARTS, {})
    assert second["api"] != asked["api"]
    assert second["proxy"] == asked["proxy"]
    said = f"Port {asked['api']} is taken by another program: the REST API listens on"
    assert f"{said} {second['api']}." in second.sentences
    assert choose_ports(file, PARTS, {})["api"] == second["api"]


def test_what_the_readme_must_read_in_place_of_8080_is_said(
    file: Path, asked: dict[str, int]
) -> None:
    chosen = choose_ports(file, PARTS, asked)
    for part, wished in WISHED.items():
        (said,) = (one for one in chosen.sentences if f"write {wished}" in one)
        assert said.endswith(f"write {asked[part]}.")


def test_at_first_the_ports_are_those_of_the_readme(file: Path) -> None:
    chosen = choose_ports(file, PARTS, {})
    for part, wished in WISHED.items():
        assert chosen[part] == wished or not is_free(wished)


def test_a_port_that_was_asked_for_and_is_taken_is_refused(
    file: Path, asked: dict[str, int]
) -> None:
    with listening(asked["api"]), pytest.raises(PortTaken, match=f"Port {asked['api']} .*REST API"):
        choose_ports(file, PARTS, asked)
    assert not file.exists()


def test_a_file_that_cannot_be_read_is_no_trouble(file: Path, asked: dict[str, int]) -> None:
    file.write_text("[")
    assert choose_ports(file, PARTS, asked)["api"] == asked["api"]
