"""A part is ready, ends in good order or is killed; its folder and ports are one stack's alone."""

import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference_store.local.folder import (
    HOST,
    LocalFolder,
    LocalStackError,
    PartEnded,
    PartNotReady,
    free_ports,
)
from inference_store.local.installing import install
from inference_store.local.part import Part, RunningPart, end_leftovers
from inference_store.local.postgres import reachable_by_all
from inference_store.local.screen import Screen
from inference_store.local.stack import PortTaken, choose_ports, environment
from tests.servers.process import is_gone
from tests.servers.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    local_folder = LocalFolder(tmp_path / "store")
    local_folder.make()
    return local_folder


def test_passwords_and_settings_are_made_for_us_alone(folder: LocalFolder) -> None:
    first = folder.passwords()
    assert folder.passwords() == first
    assert len({first.postgres, first.s3_access_key, first.s3_secret_key}) == 3
    assert (folder.path / "passwords.json").stat().st_mode & 0o077 == 0
    folder.write_settings({"INFERENCE_STORE_POSTGRES_PASSWORD": "a 'quoted' $word"})
    assert folder.settings.stat().st_mode & 0o077 == 0
    read = f'. {folder.settings}; printf %s "$INFERENCE_STORE_POSTGRES_PASSWORD"'
    assert subprocess.check_output(read, shell=True, text=True) == "a 'quoted' $word"


def test_a_second_stack_or_a_closed_folder_is_noticed(folder: LocalFolder, tmp_path: Path) -> None:
    with folder.taken(), pytest.raises(LocalStackError, match="another folder"), folder.taken():
        pass
    with folder.taken():
        pass
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert not reachable_by_all(inner)
    assert reachable_by_all(Path("/"))


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
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, port))
        other.listen()
        yield


@pytest.fixture
def requested() -> dict[str, int]:
    """Return two ports that no other test takes: 8080 may be taken on this machine."""
    return dict(zip(("api", "proxy"), free_ports(2), strict=True))


def test_a_port_that_is_requested_is_taken_or_refused_and_each_part_has_its_own(
    requested: dict[str, int],
) -> None:
    ports, sentences = choose_ports(PARTS, requested)
    assert ports | requested == ports
    assert len(set(ports.values())) == len(PARTS)
    assert f"The REST API listens on {requested['api']}: " in sentences[0]
    refused = pytest.raises(PortTaken, match=f"Port {requested['api']} .*REST API")
    with occupy(requested["api"]), refused:
        choose_ports(PARTS, requested)


def test_a_taken_default_port_gives_way_to_the_next_free_one(
    requested: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = requested["api"]
    monkeypatch.setattr("inference_store.local.stack.DEFAULT_PORTS", {"api": taken})
    assert choose_ports(PARTS, {})[0]["api"] == taken
    with occupy(taken):
        ports, [sentence] = choose_ports(PARTS, {})
    assert ports["api"] not in {taken, ports["proxy"], ports["s3"]}
    assert f"Port {taken} is taken by another program. The REST API listens" in sentence


SERVICES = Path(__file__).parents[3] / "services"


def test_a_failure_quotes_pip_and_nothing_installed_is_needed(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text("no-such-folder @ file:///nowhere/no-such-folder\n")
    out = io.StringIO()
    assert install(lock, Screen(out)) != 0
    assert "ERROR" in out.getvalue()
    code = "import inference_store.local.installing, sys; print(*sys.modules)"
    command = (sys.executable, "-S", "-c", code)
    environment = os.environ | {"PYTHONPATH": str(SERVICES)}
    modules = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True)
    assert "inference_store.local.installing" in modules


SLEEPS = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('deaf', flush=True); time.sleep(600)"
)


def start(folder: LocalFolder, code: str, *, stop_seconds: float = 300.0) -> RunningPart:
    command = (sys.executable, "-c", code)
    part = Part("one", command, os.environ, folder.path, stop_seconds=stop_seconds)
    return RunningPart(part, folder)


def test_a_part_that_ends_or_is_never_ready_is_reported(folder: LocalFolder) -> None:
    running = start(folder, "raise SystemExit('no such disk')")
    with pytest.raises(PartEnded, match="no such disk"):
        running.wait_ready(lambda: "not yet", 300)
    running = start(folder, SLEEPS)
    with pytest.raises(PartNotReady, match="database is unavailable"):
        running.wait_ready(lambda: "database is unavailable", 0)
    assert is_gone(running.pid)


def test_a_deaf_part_is_killed(folder: LocalFolder) -> None:
    running = start(folder, STUBBORN, stop_seconds=0)
    running.wait_ready(lambda: None if "deaf" in running.log.read_text() else "starting", 300)
    running.stop()
    assert is_gone(running.pid)
    running.stop()


STARTER = """
import os, sys, time
from pathlib import Path
from inference_store.local.folder import LocalFolder
from inference_store.local.part import Part, RunningPart
folder = LocalFolder(Path(sys.argv[1]))
one = Part("one", (sys.executable, "-c", sys.argv[2]), os.environ, folder.path)
print(RunningPart(one, folder).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends orphans by itself")
def test_on_linux_a_part_dies_with_its_starter(folder: LocalFolder) -> None:
    command = (sys.executable, "-c", STARTER, str(folder.path), SLEEPS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    wait_until(lambda: is_gone(pid), seconds=300, what="its end")


def test_a_leftover_of_the_folder_is_ended_and_no_other(
    folder: LocalFolder, tmp_path: Path
) -> None:
    other = LocalFolder(tmp_path / "other")
    other.make()
    running, others = start(folder, SLEEPS), start(other, SLEEPS)
    assert end_leftovers(folder) == [running.pid]
    wait_until(lambda: is_gone(running.pid), seconds=300, what="its end")
    assert end_leftovers(folder) == []
    assert not is_gone(others.pid)
    for part in (running, others):
        part.stop()
