"""An export's file appears when it is whole, and not at all otherwise."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from inference_store_client.chunks import RESTART, Chunk
from inference_store_client.command_line.ending import end_quietly
from inference_store_client.command_line.new_file import NewFile
from tests.largest_file import largest_file


def test_it_appears_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "frames.csv"
    with NewFile(path) as file:
        file.accept(Chunk(b"void"))
        file.accept(RESTART)
        file.accept(Chunk(b"a"))
        file.accept(Chunk(b"b"))
        assert not path.exists()
    assert path.read_bytes() == b"ab"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.iterdir()] == [path]


def test_an_error_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "frames.csv"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), NewFile(path):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before"


def test_what_is_converted_leaves_no_other_file(tmp_path: Path) -> None:
    def write(source: IO[bytes], target: str) -> None:
        Path(target).write_bytes(source.read()[::-1])

    def fail(source: IO[bytes], target: str) -> None:
        write(source, target)
        raise ValueError

    def make(convert: Callable[[IO[bytes], str], None]) -> None:
        with NewFile(path) as file:
            file.accept(Chunk(b"abc"))
            file.convert(convert)

    path = tmp_path / "frames.parquet"
    with pytest.raises(ValueError):
        make(fail)
    assert [*tmp_path.iterdir()] == []
    make(write)
    assert path.read_bytes() == b"cba"
    assert [*tmp_path.iterdir()] == [path]


def test_a_disk_that_is_full_is_a_sentence_about_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frames.csv"

    def run(size: int) -> int:
        with NewFile(path) as file:
            file.accept(Chunk(bytes(size)))
        return 0

    for size in (100, 100_000):
        with largest_file(10):
            status = end_quietly(partial(run, size))
        assert (status, capsys.readouterr().err) == (1, f"{path}: File too large\n"), size
        assert [*tmp_path.iterdir()] == []
