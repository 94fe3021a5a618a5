"""A server is put into the cache once and whole."""

from pathlib import Path

import pytest

from tests.servers.cache import install


def build(folder: Path) -> None:
    (folder / "program").write_text("whole")


def refuse(folder: Path) -> None:
    (folder / "program").write_text("half")
    raise RuntimeError("the download broke off")


def test_a_build_appears_whole(tmp_path: Path) -> None:
    folder = install(tmp_path / "server-1", build)
    assert (folder / "program").read_text() == "whole"
    assert install(folder, refuse) == folder


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        install(tmp_path / "server-1", refuse)
    assert [path.name for path in tmp_path.iterdir()] == [".server-1.lock"]
    assert install(tmp_path / "server-1", build).is_dir()
