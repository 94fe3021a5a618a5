"""What the command line says of an export that the store writes, if something goes wrong."""

import json
from pathlib import Path

import httpx
import pytest

from inference_store_client import Store
from inference_store_client.command_line.ending import end_quietly
from inference_store_client.command_line.export_job import download
from inference_store_client.command_line.main import main
from tests.both_clients import QUICK, Recorded
from tests.unit.client.fake_exports import EXPORT, make_export, make_page, make_part

from .http_server import serve


def get(folder: Path, *answers: httpx.Response | BaseException, state: str = "pending") -> int:
    """Read an export and download it, before these answers; return the exit code."""
    recorded = Recorded([make_export(state), *answers])
    http = httpx.Client(transport=httpx.MockTransport(recorded))
    store = Store("https://store.example", retries=QUICK, http_client=http)

    def run() -> int:
        download(store.export(EXPORT), folder)
        return 0

    return end_quietly(run)


def test_ctrl_c_says_what_becomes_of_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetches = f"`istore exports get {EXPORT} -o FOLDER` fetches it"
    for state, said in {
        "pending": f"The store goes on with export {EXPORT}: {fetches},"
        f" `istore exports cancel {EXPORT}` stops it.\n",
        "done": f"Export {EXPORT} stays in the store until it expires: {fetches}.\n",
    }.items():
        assert get(tmp_path / "frames", KeyboardInterrupt(), state=state) == 130
        assert capsys.readouterr().err == said, state
        assert [*tmp_path.iterdir()] == [], state


def test_an_export_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "frames"
    assert get(folder, make_export("done"), make_page([]), make_export("done")) == 0
    assert capsys.readouterr().err == (
        f"0 inferences in 0 files: {folder}\nnothing matches: the folder is empty\n"
    )
    assert [*folder.iterdir()] == []


def test_what_is_not_in_an_export_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = make_part(1, b"one") | {"gone": 1, "missing": 2}
    page, content = make_page([part]), httpx.Response(200, content=b"one")
    assert get(tmp_path / "frames", make_export("done"), page, content) == 0
    assert capsys.readouterr().err == (
        f"1 inference in 1 file: {tmp_path / 'frames'}\n"
        "left out: 1 inference (erased), 2 blobs (deleted, not in the bucket, or too large)\n"
    )


def test_what_only_a_job_writes_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "m", "--url", "http://127.0.0.1:1", "-o", str(tmp_path / "frames")]
    for more, remedy in [
        (["--format", "chariot"], "--format chariot: only the store writes it; add --job"),
        (["--format", "webdataset", "--blobs", "copy"], "--blobs: of a job alone; add --job"),
        (["--format", "coco", "--job"], "a job writes parquet, arrow"),
    ]:
        assert main([*words, *more]) == 2
        assert remedy in capsys.readouterr().err


def test_a_job_obeys_the_ending_of_its_folder(tmp_path: Path) -> None:
    with serve() as server:
        for words, format in [
            ("faces.csv", "csv"),
            ("faces.NDJSON", "jsonl"),
            ("faces", "parquet"),
            ("faces.csv --format arrow", "arrow"),
        ]:
            name, *more = words.split()
            asked = ["export", "m", "--job", "--url", server.make_url({})]
            assert main([*asked, "-o", str(tmp_path / name), *more]) == 1
            assert json.loads(server.bodies[-1])["format"] == format, words


def test_a_request_without_an_answer_may_have_been_carried_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "m", "--url", "http://127.0.0.1:1", "--job", "-o", str(tmp_path / "frames")]
    assert main(words) == 1
    assert "`istore exports list` shows the export" in capsys.readouterr().err
