"""Datasets that the client wrote, read by the library that each format is for."""

import asyncio
import re
from collections.abc import Mapping
from math import cos, sin
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from inference_store_client import Store
from inference_store_client.datasets import FORMATS
from inference_store_client.datasets.annotations import SUFFIXES
from tests.console.pictures import HEIGHT, WIDTH
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.stored_inferences import NewInference
from tests.integration.stored_pictures import BIG, DETECTIONS, MODEL, store_pictures
from tests.readers.environment import read

_METADATA = {
    "frame_number": BIG + 1,
    "price": "0.1000000000000000000001",
    "speed": 1.0,
    'a "key" of none': "NaN",
}


def list_boxes(number: int) -> list[tuple[str, list[float], float]]:
    """Return what the store's model saw in a picture of the street."""
    boxes = [("person", [10 + number, 20, 100 - number, 50.5], number / 10)]
    if number % 2:
        boxes.append(("car", [10 + number, 20, WIDTH - 10 - number, 50.5], 0.5))
    return boxes


@pytest.fixture
async def stored(engine: AsyncEngine, blobs: Blobs, bucket: str) -> list[NewInference]:
    return await store_pictures(engine, blobs, bucket)


async def write_and_read(make_app: MakeApp, folder: Path, name: str) -> list[Any]:
    async with serve_app(make_app()) as http:
        with Store(str(http.base_url)) as store:
            inferences = store.model(MODEL).inferences().sort("received_at")
            summary = await asyncio.to_thread(inferences.to_dataset, name, folder / name)
    other = {} if FORMATS[name].has_texts else {"not_a_picture": 1}
    assert summary.left_out == {"deleted": 1, **other}
    pictures = await asyncio.to_thread(
        read, "read_pictures.py", name, str(folder / name), home=folder
    )
    assert isinstance(pictures, list)
    assert len(pictures) == summary.pictures
    return pictures


def check_street(names: Mapping[str, Any], *, has_scores: bool) -> None:
    for number in range(DETECTIONS):
        expected = {label: (box, score) for label, box, score in list_boxes(number)}
        objects = {item["label"]: item for item in names[f"street-{number}"]["objects"]}
        assert objects.keys() == expected.keys()
        for label, (box, score) in expected.items():
            assert objects[label]["box"] == pytest.approx(box, abs=WIDTH / 1e5)
            assert not has_scores or objects[label]["score"] == score


def check_turned(picture: Any) -> None:
    """Check the upright box around the ship's."""
    [ship] = picture["objects"]
    across = WIDTH / 4 * cos(0.5) + HEIGHT / 2 * sin(0.5)
    down = WIDTH / 4 * sin(0.5) + HEIGHT / 2 * cos(0.5)
    box = [(WIDTH - across) / 2, (HEIGHT - down) / 2, across, down]
    assert ship["box"] == pytest.approx(box, abs=0.01)


def check_outlines(names: Mapping[str, Any]) -> None:
    """Check what pycocotools makes of contours, keypoints and a turned box."""
    [cell], [pose], [ship] = (names[name]["objects"] for name in ("cells", "pose", "ship"))
    # A trapezoid without what is beyond the left edge, and a triangle.
    assert cell["mask"] == pytest.approx(14_400 - 600 + 50, rel=0.02)
    assert pose["keypoints"] == [30, 40, 2, 0, 0, 0, 60, 90, 2]
    assert ship["mask"] == pytest.approx(WIDTH / 4 * HEIGHT / 2, rel=0.02)


@pytest.mark.real_readers
@pytest.mark.real_ultralytics
def test_what_a_reader_of_folders_would_skip_is_unsupported(tmp_path: Path) -> None:
    for name, suffixes in read("list_suffixes.py", home=tmp_path).items():
        assert SUFFIXES - set(suffixes) == FORMATS[name].unsupported


@pytest.mark.real_readers
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.real_ultralytics if name == "yolo" else ())
        for name in FORMATS
    ],
)
async def test_a_reader_sees_the_same_pictures_and_boxes(
    make_app: MakeApp, stored: list[NewInference], tmp_path: Path, name: str
) -> None:
    pictures = await write_and_read(make_app, tmp_path, name)
    ids = {str(item.uid): item.inference_id for item in stored}
    names = {ids.pop(picture["uid"]): picture for picture in pictures}
    if FORMATS[name].has_texts:
        assert names.pop("words")["text"] == "no picture"
    assert sorted(ids.values()) == ["gone", "words"][: 1 if FORMATS[name].has_texts else 2]
    assert all(picture["size"] == [WIDTH, HEIGHT] for picture in names.values())
    check_street(names, has_scores=name != "yolo")
    check_turned(names["ship"])
    counts = [len(names[key]["objects"]) for key in ("pet", "failed", "cells", "pose")]
    assert counts == [0, 0, 1, 1]
    labels = {key: picture["label"] for key, picture in names.items()}
    assert labels == {**dict.fromkeys(names), "pet": "cat"}
    if name == "coco":
        check_outlines(names)
    if name in {"huggingface", "webdataset"}:
        assert names["street-1"]["metadata"] == _METADATA


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "datasets.md"


@pytest.mark.real_ultralytics
async def test_every_example_prints_what_the_page_shows(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str, tmp_path: Path
) -> None:
    await store_pictures(engine, blobs, bucket)
    async with serve_app(make_app()) as http:
        url = str(http.base_url).rstrip("/")
        count = await asyncio.to_thread(
            read, "run_examples.py", str(PAGE), url, home=tmp_path, folder=tmp_path
        )
    assert count > 20


def test_the_page_has_every_format_and_how_it_is_written() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| \[(.+?)\]\(#.+?\) \| `(\w+)` \|", text, re.MULTILINE)
    assert rows == [(each.title, name) for name, each in FORMATS.items()]
    assert all(f"## {title}\n" in text and f'.to_dataset("{name}"' in text for title, name in rows)
