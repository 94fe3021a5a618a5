"""Tar files that the store wrote, fetched by the command line and read by `webdataset`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.console.pictures import HEIGHT, WIDTH
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.test_erasures import make_run_retention
from tests.integration.client.istore import Istore
from tests.integration.client.test_exports import running
from tests.integration.stored_inferences import NewInference
from tests.integration.stored_pictures import MODEL, list_pictures, store_pictures
from tests.readers.environment import read

pytestmark = pytest.mark.real_readers


@pytest.fixture
async def stored(engine: AsyncEngine, blobs: Blobs, bucket: str) -> list[NewInference]:
    """The inferences, the first one received first."""
    return await store_pictures(engine, blobs, bucket)


@pytest.fixture
async def url(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, settings: Callable[..., ApiSettings]
) -> AsyncIterator[str]:
    """The address of a store whose retention writes exports."""
    run_turn = make_run_retention(engine, blobs, settings(), export_part_inferences=5)
    async with serve_app(make_app()) as http, running(run_turn):
        yield str(http.base_url)


async def test_samples_have_the_inputs_and_the_inferences(
    url: str, stored: list[NewInference], tmp_path: Path
) -> None:
    folder = tmp_path / "street"
    words = ("export", MODEL, "--job", "--format", "webdataset", "-o", str(folder))
    ended = await Istore(url, tmp_path).run(*words)
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in sorted(folder.iterdir())] == [
        f"part-0000{number}.tar" for number in (1, 2, 3)
    ]
    samples = await asyncio.to_thread(read, "read_samples.py", str(folder), home=tmp_path)
    assert [sample["key"] for sample in samples] == [str(each.uid) for each in stored]
    for sample, picture in zip(samples, list_pictures(), strict=True):
        inference = sample["inference"]
        assert (inference["uid"], inference["inference_id"]) == (sample["key"], picture.name)
        assert len(inference["metadata"]) == len(picture.metadata)
        if picture.data is None:
            assert sample["files"] == {}
        elif picture.data == b"no picture":
            assert sample["files"] == {"bin": len(picture.data)}
        else:
            assert sample["files"] == {"png": [WIDTH, HEIGHT]}
    labels = [each["label"] for each in samples[1]["inference"]["predictions"]]
    assert labels == ["car", "person"]  # by their scores
