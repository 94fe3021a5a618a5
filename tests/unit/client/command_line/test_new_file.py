"""An export's file appears when it is whole, and not at all otherwise."""

import errno
from io import BytesIO
from pathlib import Path
from typing import IO

import arro3.core
import arro3.io
import pytest

from inference_store_client.chunks import RESTART, Chunk
from inference_store_client.command_line.ending import end_quietly
from inference_store_client.command_line.new_file import NewFile
from inference_store_client.command_line.parquet import write_parquet
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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_after_an_error_there_is_nothing(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        with NewFile(tmp_path / "frames.csv") as file:
            file.accept(Chunk(b"a"))
            raise error

    with pytest.raises(type(error)):
        fail()
    assert [*tmp_path.iterdir()] == []


def test_an_error_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "frames.csv"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), NewFile(path):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_converted_leaves_no_other_file(tmp_path: Path, *, fails: bool) -> None:
    path = tmp_path / "frames.parquet"

    def write(source: IO[bytes], target: str) -> None:
        Path(target).write_bytes(source.read()[::-1])
        if fails:
            raise ValueError

    def make() -> int:
        with NewFile(path) as file:
            file.accept(Chunk(b"abc"))
            file.convert(write)
        return 0

    if fails:
        with pytest.raises(ValueError):
            make()
        assert [*tmp_path.iterdir()] == []
    else:
        assert make() == 0
        assert path.read_bytes() == b"cba"
        assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_disk_that_is_full_is_a_sentence_about_the_file(
    size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frames.csv"

    def run() -> int:
        with NewFile(path) as file:
            file.accept(Chunk(bytes(size)))
        return 0

    with largest_file(10):
        status = end_quietly(run)
    assert (status, capsys.readouterr().err) == (1, f"{path}: File too large\n")
    assert [*tmp_path.iterdir()] == []


def test_a_disk_that_is_full_of_parquet_is_one_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frames.parquet"
    numbers = arro3.core.Array(list(range(20_000)), arro3.core.DataType.int64())
    stream = BytesIO()
    arro3.io.write_ipc_stream(arro3.core.Table.from_arrays([numbers], names=["n"]), stream)

    def run() -> int:
        with NewFile(path) as file:
            file.convert(lambda _, target: write_parquet(stream, target))
        return 0

    stream.seek(0)
    with largest_file(10_000):
        status = end_quietly(run)
    assert (status, capfd.readouterr().err) == (1, f"{path}: File too large\n")
    assert [*tmp_path.iterdir()] == []
