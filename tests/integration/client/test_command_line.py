"""The command line before the real api."""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import arro3.io
import httpx
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.hallway import MODEL
from tests.integration.stored_inferences import NewInference, store

from .istore import Istore

_CARS = "prediction(label = 'car')"


@pytest.fixture
async def istore(
    make_app: MakeApp,
    frames: None,  # noqa: ARG001
    tmp_path: Path,
) -> AsyncIterator[Istore]:
    """The command line before a store with the hundred frames of the docs."""
    async with serve_app(make_app()) as http:
        yield Istore(str(http.base_url), tmp_path)


def read_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# What docs/how-to/command-line.md shows is held by its examples: test_docs.py


async def test_models_overviews_and_inferences(istore: Istore) -> None:
    everything = await istore.run("query", MODEL, "--limit", "5000", "--columns", "uid")
    assert (len(everything.stdout.splitlines()), everything.stderr) == (100, "")
    words = ("overview", MODEL, "--since", "2026-11-01", "--until", "2026-11-11", "--json")
    [item] = read_lines((await istore.run(*words)).stdout)
    assert (item["inferences"], item["errors"], item["estimated"]) == (40, 4, False)
    earlier = ("drift", MODEL, "--reference", "2026-11-01", "--since", "2026-11-13")
    [item] = read_lines((await istore.run(*earlier, "--of", "model_ms", "--json")).stdout)
    [row] = item["rows"]
    assert (row["effect"], row["reference"]["n"], row["too_few"]) == (1, 48, True)
    late = ("drift", MODEL, "--since", "2026-11-01", "--filter", "frame_number >= 9000")
    table = await istore.run(*late, "--against", "frame_number < 9000", "--format", "table")
    assert "50 inferences  frame_number < 9000 AND received_at >= " in table.stdout
    assert re.search(r"^too few +1.000 +frame_number .* 50 / 50 ", table.stdout, re.MULTILINE)
    listed = await istore.run("models")
    assert [item["model_id"] for item in read_lines(listed.stdout)] == [MODEL]
    table = await istore.run("models", "--format", "table")
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["model_id", MODEL]
    none = await istore.run("models", "--project", "no-such-project")
    assert (none.returncode, none.stdout) == (1, "")
    assert "There is no project 'no-such-project' with models" in none.stderr
    misspelt = await istore.run("count", MODEL[:-1])
    assert f"There is no model '{MODEL[:-1]}'. The nearest is {MODEL}." in misspelt.stderr
    whole = await istore.run("get", MODEL, "req/7")
    [item] = read_lines(whole.stdout)
    assert (item["inference_id"], item["metadata"]["frame_number"]) == ("frame-007", 8957)
    assert "urls" not in item
    table = await istore.run("get", MODEL, "frame-007", "--format", "table")
    assert "metadata.frame_number     8957\n" in table.stdout
    missing = await istore.run("get", MODEL, "frame-7")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "'frame-7'" in missing.stderr
    samples = [await istore.run("sample", MODEL, "--size", "5", "--seed", s) for s in "778"]
    assert samples[0].stdout == samples[1].stdout != samples[2].stdout
    assert len(samples[0].stdout.splitlines()) == 5
    # a reader that has enough ends it quietly
    process = await istore.start("query", MODEL, "--limit", "100")
    assert process.stdout is not None
    await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]
    assert process.stderr is not None
    assert await process.stderr.read() == b""
    assert await process.wait() in {0, 141}


async def test_evaluations(istore: Istore) -> None:
    async with httpx.AsyncClient(base_url=istore.url) as http:
        for number, items in ((7, []), (8, [{"label": "car"}]), (10, [{"label": "person"}])):
            path = f"/v1/models/{MODEL}/inferences/frame-{number:03d}/ground-truth"
            assert (await http.put(path, json={"items": items})).status_code == 200
    words = ("evaluate", MODEL, "--task", "labels", "--by", "data_source")
    shown = await istore.run(*words)
    lines = shown.stdout.splitlines()
    assert lines[0] == "3 of 100 inferences have ground truth."
    assert lines[1] == "They are too few: no figure says much."
    [head] = [line for line in lines if line.startswith("data_source")]
    assert head.split() == ["data_source", "n", "accuracy", "worse"]
    [row] = [line for line in lines if line.startswith("hallway")]
    assert "(too few)" in row
    [answer] = read_lines((await istore.run(*words, "--filter", "ok", "--json")).stdout)
    assert (answer["inferences"], answer["labelled"], answer["labels"]["accuracy"]["n"]) == (
        90,
        3,
        2,
    )
    boxes = await istore.run("evaluate", MODEL, "--task", "boxes", "--iou", "0.7", "--score", "0.5")
    assert "precision" in boxes.stdout
    assert "ap_75" in boxes.stdout
    wrong = await istore.run("evaluate", MODEL, "--by", "data_sorce")
    assert (wrong.returncode, "data_source" in wrong.stderr) == (1, True)


_ERRORS = [
    (
        ["query", MODEL, "--columns", "top_scor"],
        1,
        "there is no field 'top_scor'; the nearest are top_score, top_label; /reference lists",
    ),
    (
        ["query", MODEL, "--columns", "frame_number"],
        1,
        "no other name is spelled like it; /reference lists all; a metadata key is written",
    ),
    (
        ["query", MODEL, "--columns", "ok,metadata.frame_numer"],
        1,
        "--columns: there is no metadata key 'frame_numer'; the nearest are frame_number",
    ),
    (["count", MODEL, "--filter", "frame_numer > 1", "--unknown-keys", "empty"], 0, ""),
    (["tail", MODEL, "--columns", "metadata.frame_numer"], 1, "the nearest are frame_number"),
    (["count", MODEL, "--since", "-98w", "--until", "-99w"], 1, "--until: it must be later"),
    (["query", MODEL, "--sort", "-top_scor"], 1, "top_scor"),
]


async def test_an_error_or_a_warning_names_what_is_wrong(
    istore: Istore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for words, status, said in _ERRORS:
        with subtests.test(" ".join(words)):
            ended = await istore.run(*words)
            assert ended.returncode == status, ended.stderr
            assert said in ended.stderr
            assert "Traceback" not in ended.stderr
    misspelt = ["--filter", "prediction(label = 'caar')", "-o", str(tmp_path / "frames.csv")]
    ended = await istore.run("export", MODEL, *misspelt)  # a warning, and CSV has no room for it
    assert (ended.returncode, "warning: No prediction" in ended.stderr) == (0, True)


@pytest.mark.long
async def test_a_parquet_file_has_every_match(istore: Istore, tmp_path: Path) -> None:
    """The other formats are what the client streams."""
    path = tmp_path / "frames.parquet"
    ended = await istore.run("export", MODEL, "-o", str(path), "--filter", _CARS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("17 inferences, ")
    table = arro3.io.read_parquet(path).read_all()
    assert sorted(map(str, table.column("inference_id").to_pylist())) == [
        f"frame-{n:03}" for n in range(0, 100, 6) if n % 10 != 9
    ]
    assert "cursor" not in table.schema.names
    assert "metadata.frame_number" in table.schema.names
    again = await istore.run("export", MODEL, "-o", str(path))
    assert (again.returncode, "--force replaces it" in again.stderr) == (2, True)


async def test_tagging_and_erasing_say_what_they_change(istore: Istore) -> None:
    tagged = await istore.run("tag", MODEL, "check", "--id", "frame-001", "--id", "frame-1")
    assert (tagged.returncode, tagged.stdout) == (1, "1 changed, 0 were so already.\n")
    assert "There is no inference 'frame-1'." in tagged.stderr
    untagged = await istore.run("untag", MODEL, "check", "--filter", "tags = 'check'")
    assert (untagged.returncode, untagged.stdout) == (0, "1 changed, 0 were so already.\n")
    asked = await istore.run("erase", MODEL, "--filter", "frame_number < 8953")
    assert (asked.returncode, json.loads(asked.stdout)["inferences"]) == (1, 3)
    assert (await istore.run("count", MODEL)).stdout == "100\n"
    erased = await istore.run("erase", MODEL, "--id", "frame-001", "--id", "frame-002", "--yes")
    assert erased.returncode == 0
    assert "It takes 2 inferences" in erased.stderr
    assert json.loads(erased.stdout)["asked"] == {"inference_ids": ["frame-001", "frame-002"]}
    missing = await istore.run("erase", MODEL, "--id", "frame-1", "--yes")
    assert (missing.returncode, missing.stdout) == (1, "")


async def test_labels_and_files_of_them(istore: Istore, tmp_path: Path) -> None:
    said = await istore.run("label", MODEL, "frame-001", "person", "car@1,2,3,4.5")
    assert (said.returncode, said.stdout) == (0, "Revision 1 of 'human': 2 items.\n")
    path = tmp_path / "truth.jsonl"
    path.write_text('{"id": "frame-001", "items": []}\n{"id": "frame-002", "items": []}\n{}\n')
    loaded = await istore.run("truth", "load", MODEL, str(path), "--column", "inference_id=id")
    counts = "2 changed, 0 were so already, 0 wait for their inferences.\n"
    assert (loaded.returncode, loaded.stdout) == (1, counts)
    assert f"{path}:3: refused: inference_id: " in loaded.stderr
    path.write_text(f'{{"model_id": "{MODEL}", "inference_id": "frame-002", "items": []}}\n')
    loaded = await istore.run("truth", "load", str(path))
    assert loaded.stdout == "0 changed, 1 were so already, 0 wait for their inferences.\n"
    assert (await istore.run("label", MODEL, "frame-001", "--delete")).stdout == "Deleted.\n"
    counted = await istore.run("count", MODEL, "--filter", "has_truth AND count_truth() = 0")
    assert counted.stdout == "1\n"


async def test_the_bytes_of_a_part(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str, tmp_path: Path
) -> None:
    blobs.put(StorageKey(bucket, "data"), b"\xff\xd8jpeg", content_type="image/jpeg")
    await store(engine, NewInference("one", keys=(f"{bucket}/data", None, None)))
    async with serve_app(make_app()) as http:
        process = await Istore(str(http.base_url), tmp_path).start(
            "get", "model", "one", "--part", "data"
        )
        output, _ = await process.communicate()
    assert output == b"\xff\xd8jpeg"


async def store_arrival(engine: AsyncEngine, name: str, *, seconds_ago: float = 0) -> None:
    """Store an inference that was received so long ago, and indexed now."""
    now = datetime.now(UTC)
    arrival = NewInference(name, now - timedelta(seconds=seconds_ago))
    await store(engine, arrival)
    async with engine.begin() as connection:
        changed = update(inference).where(inference.c.uid == arrival.uid)
        await connection.execute(changed.values(indexed_at=now))


async def test_tail_shows_arrivals_in_their_order_and_follows(
    make_app: MakeApp, engine: AsyncEngine, tmp_path: Path
) -> None:
    await store_arrival(engine, "first", seconds_ago=1)
    await store_arrival(engine, "received before", seconds_ago=60)
    async with serve_app(make_app()) as http:
        istore = Istore(str(http.base_url), tmp_path)
        last = await istore.run("tail", "model", "--no-follow", "--limit", "1")
        assert [item["inference_id"] for item in read_lines(last.stdout)] == ["received before"]
        tail = await istore.start("tail", "model", "--columns", "inference_id")
        assert tail.stdout is not None
        shown = []
        async with asyncio.timeout(300):
            for number in range(4):
                shown.append(json.loads(await tail.stdout.readline())["inference_id"])
                if number:
                    await store_arrival(engine, f"new {number}")
            tail.send_signal(signal.SIGINT)
            output, said = await tail.communicate()
    assert shown == ["first", "received before", "new 1", "new 2"]
    assert (tail.returncode, said) == (130, b"")
    assert output.count(b"\n") <= 1
