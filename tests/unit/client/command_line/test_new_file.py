"""An export's file appears when it is whole, and not at all otherwise."""

import errno
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO

import arro3.core
import arro3.io
import nanoarrow as na
import pytest
from nanoarrow.ipc import StreamWriter

from inference_store_client.chunks import RESTART, Chunk
from inference_store_client.command_line import parquet
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


def test_after_an_error_there_is_nothing(tmp_path: Path) -> None:
    errors: list[BaseException] = [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")]

    def fail(error: BaseException) -> None:
        with NewFile(tmp_path / "frames.csv") as file:
            file.accept(Chunk(b"a"))
            raise error

    for error in errors:
        with pytest.raises(type(error)):
            fail(error)
        assert [*tmp_path.iterdir()] == []


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


def test_a_disk_that_is_full_of_parquet_is_one_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "frames.parquet"
    numbers = arro3.core.Array(list(range(20_000)), arro3.core.DataType.int64())
    stream = BytesIO()
    arro3.io.write_ipc_stream(arro3.core.Table.from_arrays([numbers], names=["n"]), stream)

    def run() -> int:
        with NewFile(path) as file:
            file.convert(lambda _, target: parquet.write_parquet(stream, target))
        return 0

    stream.seek(0)
    with largest_file(10_000):
        status = end_quietly(run)
    assert (status, capfd.readouterr().err) == (1, f"{path}: File too large\n")
    assert [*tmp_path.iterdir()] == []


def make_stream() -> BytesIO:
    """Make an Arrow stream of three batches."""
    stream = BytesIO()
    schema = na.struct({"n": na.int64()})
    with StreamWriter.from_writable(stream) as writer:
        for number in range(3):
            numbers = na.c_array([number] * 1000, na.int64())
            batch = na.c_array_from_buffers(schema, 1000, [None], null_count=0, children=[numbers])
            writer.write_array(batch)
    stream.seek(0)
    return stream


class _Interrupted(BytesIO):
    """A file that Ctrl-C comes amid."""

    def write(self, _: object) -> int:
        raise KeyboardInterrupt


def test_ctrl_c_amid_a_write_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.open", lambda *_: _Interrupted())
    with pytest.raises(KeyboardInterrupt):
        parquet.write_parquet(make_stream(), str(tmp_path / "x.parquet"))


def test_ctrl_c_amid_the_batches_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    select = parquet._select

    class Reader:
        def __init__(self, batches: Iterator[object]) -> None:
            self._batches = batches

        def __iter__(self) -> Iterator[object]:
            yield next(self._batches)
            raise KeyboardInterrupt

    monkeypatch.setattr(
        parquet, "_select", lambda reader, names, sink: select(Reader(iter(reader)), names, sink)
    )
    with pytest.raises(KeyboardInterrupt):
        parquet.write_parquet(make_stream(), str(tmp_path / "x.parquet"))
    assert capfd.readouterr().err == ""
