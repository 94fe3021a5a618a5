"""What the client asks the real api: filters, blobs, retention, erasure, rights."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.retention import run
from inference_store_client import (
    Conflict,
    ExportFailed,
    NotFound,
    SettingsError,
    count_truth,
    field,
    meta,
    predicted,
    prediction,
    truth,
)
from tests.both_clients import Client
from tests.integration.api.api_client import make_worker
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.hallway import MODEL
from tests.integration.stored_inferences import NewInference, at
from tests.integration.stored_inferences import store as store_inferences
from tests.polling import until
from tests.settings import TOKEN

from .conftest import open_api
from .istore import Istore


async def read_ids(both: Client, inferences: Any) -> list[str]:
    return [inference.inference_id for inference in await both.list(inferences.stream)]


@pytest.mark.usefixtures("frames")
async def test_evaluations(make_app: MakeApp, both: Client) -> None:
    async with open_api(make_app(), both) as store:
        model = store.model(MODEL)
        asked = {"task": "labels", "most_labels": 3}
        inferences = model.inferences(meta.frame_number > 9000)
        answer = await both.ask(lambda: inferences.evaluate("data_source", **asked))
        assert (answer["inferences"], answer["labelled"]) == (49, 0)
        with pytest.raises(SettingsError, match="leave `limit`"):
            await both.ask(inferences.limit(3).evaluate)


@pytest.mark.usefixtures("frames")
async def test_pages_streams_and_counts_agree(make_app: MakeApp, both: Client) -> None:
    """What docs/how-to/client.md shows is held by its examples: test_docs.py."""
    async with open_api(make_app(), both) as store:
        wanted = (meta.frame_number > 9000) & prediction(predicted.score < 0.4, label="person")
        inferences = store.model(MODEL).inferences(wanted, since=at(0)).sort("frame_number")
        streamed = await read_ids(both, inferences)
        pages = await both.list(lambda: inferences.pages(3))
        assert [item.inference_id for page in pages for item in page.items] == streamed
        assert await both.ask(inferences.count) == len(streamed) == 10
        assert (await both.ask(inferences.first)).inference_id == streamed[0]
        every = store.model(MODEL).inferences()
        narrowed = every.filter(wanted).sort("frame_number")
        assert await read_ids(both, narrowed) == streamed
        assert await read_ids(both, narrowed.limit(3)) == streamed[:3]
        assert [each.inference_id for each in await both.ask(narrowed.head)] == streamed[:5]
        assert len(await both.ask(narrowed.limit(4).to_arrow)) == 4
        across = store.inferences(wanted, model_ids=[MODEL])
        assert sorted(await read_ids(both, across)) == sorted(streamed)
        assert await both.ask(across.count) == 10
        few = (across.limit(4), narrowed.limit(40), every.sample(7, seed=1), every.limit(1_001))
        assert [await both.ask(each.count) for each in few] == [4, 10, 7, 100]
        keys = await both.ask(store.model(MODEL).metadata_keys)
        assert "frame_number" in {key.name for key in keys}


@pytest.mark.usefixtures("frames")
async def test_tags_and_a_note(make_app: MakeApp, both: Client) -> None:
    async with open_api(make_app(), both) as store:
        model = store.model(MODEL)
        least = model.inferences("frame_number > 9000").sort("frame_number").limit(3)
        tagged = await both.ask(lambda: least.tag("check", "later"))
        assert (tagged.changed, tagged.unchanged, tagged.refused) == (3, 0, ())
        found = model.inferences("tags = 'check'")
        [first, *_] = await both.ask(found.head)
        assert first.metadata["tags"][-2:] == ["check", "later"]
        assert (await both.ask(lambda: found.untag("check"))).changed == 3
        assert await both.ask(model.inferences("tags = 'later'").count) == 3
        none = model.inferences(inference_ids=["nothing"])
        assert (await both.ask(lambda: none.tag("x"))).missing == ("nothing",)
        await both.ask(lambda: first.note("a bird"))
        assert await read_ids(both, model.inferences("note = 'a bird'")) == [first.inference_id]
        await both.ask(lambda: first.note(None))
        again = await both.ask(lambda: model.inference(first.inference_id))
        assert again.metadata.get("note") is None


@pytest.mark.usefixtures("frames")
async def test_ground_truth(make_app: MakeApp, both: Client, tmp_path: Path) -> None:
    async with open_api(make_app(), both) as store:
        model = store.model(MODEL)
        one = await both.ask(lambda: model.inference("frame-001"))
        box = {"label": "car", "box": [1, 2, 3, 4.5], "value": 1.5}
        said = await both.ask(lambda: one.label("person", box, source="file"))
        assert (said.revision, said.complete, said.items[1].box) == (1, True, (1, 2, 3, 4.5))
        assert await both.ask(one.truth) == (said,)
        found = model.inferences(truth(label="car") & (count_truth() == 2))
        assert await read_ids(both, found) == ["frame-001"]
        shown = model.inferences(truth(label="car"), include=["ground_truth"])
        assert [each.ground_truth for each in await both.list(shown.stream)] == [(said,)]
        await both.ask(lambda: one.unlabel(source="file"))
        assert await both.ask(found.count) == 0
        rows = [{"inference_id": "frame-002", "items": [box]}, {"inference_id": "x" * 300}]
        loaded = await both.ask(lambda: model.load_ground_truth(rows))
        assert (loaded.changed, loaded.refused, loaded.problems[0].line) == (1, 1, 2)
        path = tmp_path / "truth.csv"
        path.write_text("image,class,xmin\nframe-003,car,\nframe-003,lamp,\nlater,car,\n")
        columns = {"inference_id": "image", "label": "class"}
        loaded = await both.ask(lambda: model.load_ground_truth(path, columns=columns))
        assert (loaded.matched, loaded.awaiting, loaded.problems) == (1, 1, ())
        ids = await read_ids(both, model.inferences("has_truth").sort("received_at"))
        assert ids == ["frame-002", "frame-003"]
        rows = [{"model_id": MODEL, "inference_id": "frame-004", "label": "car"}, {"uid": "x"}]
        loaded = await both.ask(lambda: store.load_ground_truth(rows))
        assert (loaded.changed, loaded.refused, loaded.problems[0].line) == (1, 1, 2)


@pytest.mark.parametrize("links", ["on", "off"])
async def test_blobs_retention_and_erasure(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str, both: Client, links: str
) -> None:
    names = [f"{bucket}/{name}" for name in ("data", "response", "metadata")]
    for name, content in zip(names, (b"jpeg", b'{"a": 0.1}', b"{}"), strict=True):
        blobs.put(StorageKey(*name.split("/", 1)), content, content_type="image/jpeg")
    await store_inferences(
        engine, NewInference("one", keys=(names[0], names[1], names[2])), NewInference("two", at(5))
    )
    app = make_app(auth="on", api_token=TOKEN, presigned_urls=links)
    async with open_api(app, both, TOKEN) as store:
        model = store.model("model")
        for include in (["metadata"], ["metadata", "urls"]):
            inference = await both.ask(
                model.inferences(inference_ids=["one"], include=include).first
            )
            assert (await both.ask(inference.image)).content == b"jpeg"
            assert (await both.ask(inference.response)).json() == {"a": Decimal("0.1")}
        assert (await both.ask(inference.retention)).uid == inference.uid
        erasure = await both.ask(inference.erase)
        assert (erasure.model_id, erasure.scope) == ("model", "inference")
        assert await read_ids(both, model.inferences()) == ["two"]
        with pytest.raises(NotFound):
            await both.ask(lambda: model.inference("one"))


# Exports by both clients and by the command line, from the real api and the retention service.

_PAUSE_SECONDS = 0.05
"""Between two turns of retention, which goes on beside the test."""


@asynccontextmanager
async def running(run_turn: Callable[[], object]) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            await run_turn()  # type: ignore[misc]
            await asyncio.sleep(_PAUSE_SECONDS)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def run_turn(
    engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> Callable[[], object]:
    """A turn of retention, in parts of 40."""
    return lambda: run.run_turn(make_worker(engine, blobs, settings(), export_part_inferences=40))


@pytest.fixture
async def url(
    make_app: MakeApp,
    frames: None,  # noqa: ARG001
    run_turn: Callable[[], object],
) -> AsyncIterator[str]:
    """The address of a store with the hundred frames of the docs, whose retention runs."""
    async with serve_app(make_app(export_confirm_above=95)) as http, running(run_turn):
        yield str(http.base_url)


async def test_downloads_the_same_as_a_stream(url: str, both: Client, tmp_path: Path) -> None:
    """Many need a confirmation, and one that is cancelled fails."""
    async with both.open_store(url) as store:
        every = store.model(MODEL).inferences()
        with pytest.raises(Conflict, match="confirm"):
            await both.ask(every.export)
        confirmed = await both.ask(lambda: every.export(confirm=True))
        assert (await both.ask(confirmed.cancel)).state == "cancelling"
        with pytest.raises(ExportFailed, match="cancel"):
            await both.ask(confirmed.wait)
        inferences = every.filter(field.ok)
        export = await both.ask(lambda: inferences.export("jsonl"))
        files = await both.ask(lambda: export.download(tmp_path / "frames"))
        ids = {inference.inference_id for inference in await both.list(inferences.stream)}
        done = await both.ask(export.refresh)
    assert [path.name for path in files] == [f"part-0000{n}.jsonl" for n in (1, 2, 3)]
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert len(lines) == len(ids) == done.rows == 90
    assert {json.loads(line)["inference_id"] for line in lines} == ids
    assert [download.parts for download in done.downloads] == [3]


async def test_the_command_line_downloads_a_job_and_gets_it_again(url: str, tmp_path: Path) -> None:
    istore, folder = Istore(url, tmp_path), tmp_path / "frames"
    words = ("export", MODEL, "--job", "--filter", "ok", "-o", str(folder))
    ended = await istore.run(*words, "--format", "csv", "--expires-in", "PT1H")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.endswith(f"90 inferences in 3 files: {folder}\n")
    assert sum(len(path.read_text().splitlines()) - 1 for path in folder.iterdir()) == 90
    again = await istore.run(*words)
    assert (again.returncode, "give a new folder" in again.stderr) == (2, True)
    refused = await istore.run(*words[:-1], str(tmp_path / "all"), "--expires-in", "never")
    assert (refused.returncode, "--expires-in: " in refused.stderr) == (1, True)
    [id] = re.findall(r"^Export (\S+): the store writes it", ended.stderr, re.MULTILINE)
    listed = await istore.run("exports", "list", "--format", "table")
    head, row = map(str.split, listed.stdout.splitlines())
    assert head == ["id", "model_id", "format", "state", "rows", "expires_at", "filter"]
    assert (row[:5], row[-1]) == ([id, MODEL, "csv", "done", "90"], "ok")
    got = await istore.run("exports", "get", id, "-o", str(tmp_path / "again"))
    assert got.stderr == f"90 inferences in 3 files: {tmp_path / 'again'}\n"
    cancelled = await istore.run("exports", "cancel", id)
    assert "the store deletes its parts" in cancelled.stderr
    unknown = await istore.run("exports", "get", "x", "-o", str(tmp_path / "other"))
    assert unknown.returncode == 2
    assert unknown.stderr == "x is no id of an export: `istore exports list` shows them\n"


async def test_what_was_erased_of_it_is_listed(url: str, both: Client, tmp_path: Path) -> None:
    async with both.open_store(url) as store:
        model = store.model(MODEL)
        export = await both.ask(lambda: model.inferences(field.ok).export("jsonl"))
        await both.ask(lambda: export.download(tmp_path / "before"))
        assert await both.ask(export.list_erased) == []
        inference = await both.ask(lambda: model.inference("frame-051"))
        erasure = await both.ask(inference.erase)
        [erased] = await until(lambda: both.ask(export.list_erased), bool)
        with pytest.raises(ExportFailed, match="1 part of it"):
            await both.ask(lambda: export.download(tmp_path / "stale"))
        again = await both.ask(export.restart)
        files = await both.ask(lambda: again.download(tmp_path / "after"))
    assert (erased.uid, erased.inferences, erased.scope) == (inference.uid, 1, "inference")
    assert erased.erasure == erasure.id
    assert sum(len(path.read_text().splitlines()) for path in files) == 89
    istore = Istore(url, tmp_path)
    lines = await istore.run("exports", "erased", str(export.id))
    assert json.loads(lines.stdout)["uid"] == str(inference.uid)
    restarted = await istore.run("exports", "restart", str(export.id))
    assert "`istore exports get " in restarted.stderr
    table = await istore.run("exports", "erased", str(export.id), "--format", "table")
    head, row = table.stdout.splitlines()
    assert head.split() == ["uid", "inferences", "scope", "erased_at", "erasure"]
    assert row.split()[0] == str(inference.uid)
