"""The folder: passwords are made once, and only one stack may have it."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inference_store.local.errors import LocalStackError
from inference_store.local.folder import LocalFolder
from inference_store.local.ports import free_from, free_ports, is_free
from inference_store.local.postgres_home import reachable_by_all
from inference_store.local.programs import ServicePorts, environment, settings


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


def test_the_captures_of_a_busy_machine_find_a_processor() -> None:
    servers: Any = SimpleNamespace(
        postgres=SimpleNamespace(dsn="postgresql://a/b"),
        kafka=SimpleNamespace(bootstrap_servers="127.0.0.1:1"),
        s3=SimpleNamespace(endpoint="http://127.0.0.1:2", access_key="a", secret_key="b"),
    )
    model_server: Any = SimpleNamespace(rest="http://127.0.0.1:3", grpc="127.0.0.1:4")
    ports = ServicePorts(api=5, proxy=6, proxy_grpc=7, admin={})
    assert settings(servers, model_server, ports)["PROXY_CAPTURE_PRIORITY"] == "normal"
