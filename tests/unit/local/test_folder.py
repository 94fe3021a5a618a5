"""The folder: passwords are made once, and only one stack may have it."""

import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference_store.local.demo.screen import Screen
from inference_store.local.errors import LocalStackError
from inference_store.local.folder import LocalFolder
from inference_store.local.installing import Progress, install
from inference_store.local.port_choice import DEFAULT_PORTS, PortTaken, choose_ports
from inference_store.local.ports import HOST, free_from, free_ports, is_free
from inference_store.local.postgres_home import reachable_by_all
from inference_store.local.programs import environment


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    local_folder = LocalFolder(tmp_path / "store")
    local_folder.make()
    return local_folder


def test_passwords_are_made_once_and_for_us_alone(folder: LocalFolder) -> None:
    first = folder.passwords()
    assert folder.passwords() == first
    assert len({first.postgres, first.s3_access_key, first.s3_secret_key}) == 3
    assert (folder.path / "passwords.json").stat().st_mode & 0o077 == 0


def test_a_shell_can_read_the_settings_and_other_users_cannot(folder: LocalFolder) -> None:
    folder.write_settings({"INFERENCE_STORE_POSTGRES_PASSWORD": "a 'quoted' $word"})
    assert folder.settings.stat().st_mode & 0o077 == 0
    read = f'. {folder.settings}; printf %s "$INFERENCE_STORE_POSTGRES_PASSWORD"'
    assert subprocess.check_output(read, shell=True, text=True) == "a 'quoted' $word"


def test_a_second_stack_in_the_same_folder_is_refused(folder: LocalFolder) -> None:
    with folder.taken(), pytest.raises(LocalStackError, match="another folder"), folder.taken():
        pass
    with folder.taken():
        pass


def test_detects_a_folder_closed_to_others(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert not reachable_by_all(inner)
    assert reachable_by_all(Path("/"))


def test_ports_are_different_and_free() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert free_from(ports[0]) == ports[0]
    assert free_from(ports[0], without=frozenset(ports[:1])) > ports[0]
    assert is_free(ports[1])


def test_no_setting_of_the_caller_reaches_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERENCE_STORE_POSTGRES_DSN", "postgresql://production/real")
    monkeypatch.setenv("INFERENCE_STORE_AUTH", "off")
    variables = environment({"S3_BUCKET": "inferences"})
    ours = {name: value for name, value in variables.items() if name.startswith("INFERENCE_STORE_")}
    assert ours == {"INFERENCE_STORE_S3_BUCKET": "inferences"}
    assert variables["PATH"] == os.environ["PATH"]


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


SERVICES = Path(__file__).parents[3] / "services"


def test_each_package_that_comes_is_shown(tmp_path: Path) -> None:
    shown_progress = Progress(most=3, folder=tmp_path)
    assert str(shown_progress) == "looking for 3 packages"
    shown_progress.see("Collecting opencv-python-headless==4.14.0 (from -r a.lock (line 3))\n")
    wheel = "  Downloading opencv_python_headless-4.14.0-abi3-x86_64.whl"
    shown_progress.see(f"{wheel}.metadata (20 kB)\n")
    assert shown_progress.fetched == 0
    shown_progress.see(f"{wheel} (60.1 MB)\n")
    shown_progress.see("  Using cached https://pypi.example/orjson-3.13-x86_64.whl (1.2 MB)\n")
    assert str(shown_progress) == "fetching: 2 of at most 3 packages, now orjson (1.2 MB)"
    shown_progress.see("Installing collected packages: a, b\n")
    (tmp_path / "a-1.dist-info").mkdir()
    assert str(shown_progress) == "unpacking: 1 of 2 packages"


def test_a_failure_quotes_pip(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text("no-such-folder @ file:///nowhere/no-such-folder\n")
    out = io.StringIO()
    assert install(lock, Screen(out)) != 0
    assert "ERROR" in out.getvalue()


def test_it_needs_nothing_that_is_installed(tmp_path: Path) -> None:
    code = "import inference_store.local.installing, sys; print(*sys.modules)"
    command = (sys.executable, "-S", "-c", code)
    environment = os.environ | {"PYTHONPATH": str(SERVICES)}
    modules = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True)
    assert "inference_store.local.installing" in modules
