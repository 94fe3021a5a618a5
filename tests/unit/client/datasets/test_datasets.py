"""Datasets are whole, in order and bounded: each inference is in them once, or counted."""

import json
import sys
from io import BytesIO
from itertools import product
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

import httpx
import pytest
from PIL import Image

from inference_store.inference.task_types import TASK_TYPES
from inference_store_client import Forbidden, SettingsError, StreamIncomplete, Unavailable
from inference_store_client.datasets import FORMATS, LEFT_OUT, DatasetSummary, annotations
from inference_store_client.transport import MOST_JOBS
from tests.both_clients import Client, make_problem
from tests.console.pictures import make_png
from tests.largest_file import largest_file

from .fake_pictures import BUCKET, PictureStore, make_inference, make_prediction

_BOX = (10, 20, 110, 70)
_TEXTS = {".md", ".json"}


def make_street(count: int) -> list[dict[str, Any]]:
    return [make_inference(n, make_prediction(0, "person", _BOX)) for n in range(count)]


async def write(
    client: Client, fake: Any, folder: Path, format: str = "coco", **options: Any
) -> DatasetSummary:
    store = client.make_answered(fake, "the-key")
    inferences = store.model("hallway/detector").inferences()
    summary = await client.ask(lambda: inferences.to_dataset(format, folder, **options))
    assert isinstance(summary, DatasetSummary)
    return summary


def list_all(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def test_every_match_is_there_once_and_in_order(client: Client, tmp_path: Path) -> None:
    for name in FORMATS:
        folder = tmp_path / name
        summary = await write(client, PictureStore(make_street(50)), folder, name)
        assert (summary.inferences, summary.pictures, summary.annotations) == (50, 50, 50), name
        assert (summary.classes, summary.left_out, summary.dropped) == (("person",), {}, {}), name
        assert not summary.remarks
        assert "50 pictures of 50 inferences" in (folder / "README.md").read_text(), name
        assert not [path for path in list_all(folder) if path.rpartition("/")[2][0] == "."]
    assert {name.partition("/")[0] for name in list_all(tmp_path)} == set(FORMATS)


async def test_what_is_left_out_is_counted_by_its_reason(client: Client, tmp_path: Path) -> None:
    fake = PictureStore(
        [
            *make_street(3),
            make_inference(3, data_storage_key=None),
            make_inference(4, data_deleted_at="2026-11-02T00:00:00Z"),
            make_inference(5),
            make_inference(6),
            make_inference(7),
            make_inference(8, data_content_type="text/plain; charset=utf-8"),
            make_inference(9),
            make_inference(10),
        ],
        contents={
            5: make_problem(410),
            6: make_problem(404),
            7: b'{"a": 1}',
            9: b"\x89PNG\r\n\x1a\n\0\0",
            10: b"GIF89a" + (20).to_bytes(2, "little") * 2 + b"\0\0\0",
        },
    )
    expected = {"deleted": 3, "no_data": 1, "not_a_picture": 2, "unreadable": 1}
    summary = await write(client, fake, tmp_path / "coco")
    assert (summary.left_out, summary.pictures) == (expected, 4)
    assert json.loads((tmp_path / "coco" / "annotations.json").read_text())["info"]["left_out"] == (
        expected
    )
    for reason, count in expected.items():
        assert f"{count} ({LEFT_OUT[reason]})" in str(summary)
    summary = await write(client, fake, tmp_path / "yolo", "yolo")
    assert summary.left_out == expected | {"unsupported": 1}
    assert summary.inferences == 11


async def test_without_an_answer_or_room_there_is_no_folder(client: Client, tmp_path: Path) -> None:
    faults: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"is_cut": True}, StreamIncomplete),
        ({"contents": {30: make_problem(403)}}, Forbidden),
        ({"contents": {30: make_problem(503)}}, Unavailable),
    ]
    for fault, error in faults:
        with pytest.raises(error):
            await write(client, PictureStore(make_street(40), **fault), tmp_path / "street")
        assert not list_all(tmp_path), fault
    # one format for the other client: the files are written by the same code
    for name in FORMATS if client.name == "sync" else ("coco",):
        with largest_file(10_000), pytest.raises(OSError, match="File too large") as full:
            await write(client, PictureStore(make_street(100)), tmp_path / "street", name)
        assert full.value.filename == str(tmp_path / "street"), name
        assert not list_all(tmp_path), name


async def test_a_target_that_exists_or_came_meanwhile_stays(client: Client, tmp_path: Path) -> None:
    fake = PictureStore(make_street(2))

    def answer(request: httpx.Request) -> httpx.Response:
        (tmp_path / "street").mkdir(exist_ok=True)
        return fake(request)

    with pytest.raises(SettingsError, match="exists"):
        await write(client, answer, tmp_path / "street")
    assert list_all(tmp_path) == ["street"]
    fake.requests.clear()
    with pytest.raises(SettingsError, match="exists: remove it, or name another"):
        await write(client, fake, tmp_path / "street")
    assert not fake.requests


async def test_bad_arguments_name_their_remedy(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = PictureStore([])
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("voc", {}, "there are coco, yolo"),
        ("coco", {"classes": "person"}, "a list of labels, each once"),
        ("coco", {"classes": ["car", "car"]}, "a list of labels, each once"),
        ("webdataset", {"shard_bytes": 0}, "at least 1"),
        ("coco", {}, r"pip install './client\[datasets\]'"),
    ]
    for format, options, remedy in cases:
        if "pip" in remedy:
            monkeypatch.setitem(sys.modules, "imagesize", None)
        with pytest.raises(SettingsError, match=remedy):
            await write(client, fake, tmp_path / "a", format, **options)
    assert not fake.requests
    assert not list_all(tmp_path)


async def test_links_are_used_without_the_key_and_given_up_if_they_lead_nowhere(
    client: Client, tmp_path: Path
) -> None:
    items = make_street(20)
    for number, item in enumerate(items):
        item["urls"]["data"] = f"{BUCKET}/{number}"
    for n, (bucket, by_link, by_api) in enumerate(
        [
            (None, 20, 0),
            (httpx.Response(403), 20, 20),
            (httpx.ConnectError("no route"), MOST_JOBS, 20),
        ]
    ):
        fake = PictureStore(items, bucket=bucket)
        assert (await write(client, fake, tmp_path / str(n))).pictures == 20
        hosts = [request.url.host for request in fake.requests[1:]]
        assert 0 < hosts.count("bucket.example") <= by_link
        assert hosts.count("store.example") == by_api
        keys = {request.url.host: request.headers.get("authorization") for request in fake.requests}
        assert keys == {"store.example": "Bearer the-key", "bucket.example": None}
    texts = [tmp_path / name for name in list_all(tmp_path) if Path(name).suffix in _TEXTS]
    assert texts
    assert "bucket" not in "".join(path.read_text() for path in texts)


async def test_a_few_pictures_are_in_memory_at_once(tmp_path: Path) -> None:
    """The number of requests that are on their way, and how far they run ahead of the files."""
    fake = PictureStore([item | {"data_size_bytes": 30 << 20} for item in make_street(12)])
    most, lock = [0, 0], Lock()

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/data"):
            return fake(request)
        with lock:
            most[0] += 1
            written = len([*tmp_path.rglob("*.png")])
            most[1] = max(most[1], most[0] - written)
        return fake(request)

    await write(Client("sync"), answer, tmp_path / "street")
    assert most[0] == 12
    assert most[1] <= 3  # 64 MiB


async def test_names_of_files_are_those_of_uids(client: Client, tmp_path: Path) -> None:
    odd = "../../etc/passwd\0<script>"
    item = make_inference(1, make_prediction(0, odd, _BOX), inference_id=odd)
    for name in FORMATS:
        summary = await write(client, PictureStore([item]), tmp_path / name, name)
        assert summary.classes == (odd,)
    allowed = {"README.md", "annotations.json", "labels.json", "metadata.jsonl", "data.yaml"}
    allowed |= {"inferences.jsonl", "classes.jsonl", "shard-000000.tar"}
    stems = {Path(name).name for name in list_all(tmp_path) if Path(name).suffix} - allowed
    assert stems == {f"{item['uid']}.png", f"{item['uid']}.txt"}


def test_the_outlined_task_types_are_those_of_the_store() -> None:
    outlined = [task_type for task_type in TASK_TYPES.values() if task_type.outlined]
    assert {name for kind in outlined for name in (kind.name, *kind.accepted)} == (
        annotations.OUTLINED
    )
    placed = [task_type for task_type in TASK_TYPES.values() if "xmin" in task_type.columns]
    assert {name for kind in placed for name in (kind.name, *kind.accepted)} == (
        annotations.DETECTING
    )


# Pictures are known by their first bytes, and shapes are cut at their edges, exactly.

_ORIENTATION = 0x112
_KINDS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "BMP": "bmp", "TIFF": "tiff"}
_KINDS |= {"AVIF": "avif"}


def encode(kind: str, *, orientation: int | None = None) -> bytes:
    """Encode a picture of 40 x 20 pixels."""
    exif = Image.Exif()
    if orientation is not None:
        exif[_ORIENTATION] = orientation
    file = BytesIO()
    Image.new("RGB", (40, 20), (200, 10, 10)).save(file, kind, exif=exif)
    return file.getvalue()


def test_each_kind_has_its_suffix_and_the_size_of_its_pixels() -> None:
    for kind, suffix in _KINDS.items():
        content = encode(kind)
        picture = annotations.read_picture(content)
        found = (picture.suffix, picture.size, picture.content)
        assert found == (suffix, (40, 20), content), kind
    for orientation in [3, 6, 8]:
        assert annotations.read_picture(encode("JPEG", orientation=orientation)).size == (40, 20), (
            orientation
        )


_OTHER = [b"", b"BMW is a car", b"II", b"<svg/>", b'{"a": 1}', b"RIFF\0\0\0\0WAVE", b"%PDF-1.7"]
_HEADS = [make_png(1, 0, 5), b"\xff\xd8\xff", b"II*\0", b"GIF89a"]


def test_other_data_is_no_picture_and_a_broken_header_unreadable(subtests: pytest.Subtests) -> None:
    for reason, contents in {"not_a_picture": _OTHER, "unreadable": _HEADS}.items():
        for content in contents:
            with (
                subtests.test(str(content)),
                pytest.raises(annotations.NoPicture, match=f"^{reason}$"),
            ):
                annotations.read_picture(content)


def test_broken_bytes_are_a_reason_and_no_other_error() -> None:
    chance = Random(7)
    for kind in _KINDS:
        whole = encode(kind)
        for _ in range(100):
            content = bytearray(whole[: chance.randrange(len(whole))])
            for _ in range(3):
                if content:
                    content[chance.randrange(len(content))] = chance.randrange(256)
            try:
                assert min(annotations.read_picture(bytes(content)).size) > 0
            except annotations.NoPicture as reason:
                assert str(reason) in {"not_a_picture", "unreadable"}


_SIZE = (100, 50)
_SQUARE = [(10.0, 10.0), (30.0, 10.0), (30.0, 30.0), (10.0, 30.0)]


def test_shapes_are_clipped_at_the_edges() -> None:
    cases: list[tuple[annotations.Box, annotations.Box | None]] = [
        ((10, 10, 20, 20), (10, 10, 20, 20)),
        ((-5, -5, 200, 200), (0, 0, 100, 50)),
        ((90, 40, 110, 60), (90, 40, 100, 50)),
        ((100, 0, 120, 10), None),
        ((-10, 0, 0, 10), None),
        ((20, 20, 10, 30), None),
        ((20, 20, 20, 30), None),
    ]
    for box, expected in cases:
        assert annotations.clip_box(box, _SIZE) == expected, box
    assert sorted(annotations.clip_polygon(_SQUARE, _SIZE)) == sorted(_SQUARE)
    assert annotations.measure_polygon(_SQUARE) == 400
    assert annotations.find_extent(_SQUARE) == (10, 10, 30, 30)
    outside: list[list[tuple[float, float]]] = [
        [],
        [(1.0, 1.0)],
        [(1.0, 1.0), (2.0, 2.0)],
        [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)],
        [(x + 200, y) for x, y in _SQUARE],
        [(x, y - 30) for x, y in _SQUARE],
    ]
    for points in outside:
        assert annotations.clip_polygon(points, _SIZE) == [], points


def test_the_area_is_that_of_the_pixels_inside() -> None:
    """Triangles at random, compared with a grid of points."""
    chance = Random(5)
    for _ in range(10):
        triangle = [(chance.uniform(-60, 160), chance.uniform(-60, 110)) for _ in range(3)]
        grid = product(range(1, 100, 2), range(1, 50, 2))
        inside = 4 * sum(is_inside(point, triangle) for point in grid)
        clipped = annotations.clip_polygon(triangle, _SIZE)
        assert annotations.measure_polygon(clipped) == pytest.approx(inside, abs=160)
        assert all(0 <= x <= 100 and 0 <= y <= 50 for x, y in clipped)


def is_inside(point: tuple[float, float], triangle: list[tuple[float, float]]) -> bool:
    x, y = point
    sides = [
        (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
        for (x1, y1), (x2, y2) in zip(triangle, [*triangle[1:], triangle[0]], strict=True)
    ]
    return all(side >= 0 for side in sides) or all(side <= 0 for side in sides)
