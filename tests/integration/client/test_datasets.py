"""Datasets from the real api and a real bucket."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.stored_pictures import DETECTIONS, MODEL, store_pictures

from .istore import Istore


def load(folder: Path) -> Any:
    return json.loads((folder / "annotations.json").read_text())


@pytest.fixture(autouse=True)
async def _stored(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    await store_pictures(engine, blobs, bucket)


async def test_from_the_command_line(make_app: MakeApp, tmp_path: Path) -> None:
    folder = tmp_path / "street"
    async with serve_app(make_app()) as http:
        istore = Istore(str(http.base_url), tmp_path)
        words = ("export", MODEL, "--format", "coco", "-o", str(folder), "--filter", "ok")
        ended = await istore.run(*words)
        again = await istore.run(*words)
        wrong = await istore.run(*words, "--columns", "uid")
        forced = await istore.run(*words, "--force")
    assert ended.returncode == 0, ended.stderr
    assert f"{DETECTIONS + 4} pictures of {DETECTIONS + 6} inferences" in ended.stderr
    assert ended.stderr.startswith(f"{DETECTIONS + 6} inferences, ")
    assert len(load(folder)["images"]) == DETECTIONS + 4
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [again.returncode, wrong.returncode, forced.returncode] == [2, 2, 2]
    assert "exists: remove it" in again.stderr
    assert "no columns" in wrong.stderr
    assert "remove" in forced.stderr
