"""Parquet from Arrow: an error or Ctrl-C amid it is raised as it is."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import nanoarrow as na
import pytest
from nanoarrow.ipc import StreamWriter

from inference_store_client.command_line import parquet


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
