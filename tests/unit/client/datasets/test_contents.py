"""What each format says of pictures and predictions, read with the standard library alone."""

import json
import re
import tarfile
from math import pi
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_store_client.datasets import FORMATS, DatasetSummary
from tests.both_clients import Client
from tests.console.pictures import HEIGHT, WIDTH, make_png

from .fake_pictures import PictureStore, make_inference, make_metadata, make_prediction

_BIG = 10**29 + 7
_METADATA = make_metadata(
    ("n", "int", str(_BIG)),
    ("price", "float", "0.10"),
    ("exact", "float", "0.1000000000000000000001"),
    ("huge", "float", "1e300"),
    ("nothing", "float", "NaN"),
    ("at", "timestamp", "2026-11-01T06:00:00+02:00"),
    ("camera", "json", '{"angle": 12.75, "ids": [1, null, "a"]}'),
    ("key with 'quotes\"", "string", "\u202e\ud800"),
)
_CUT = (-10, 10, 40, 40)
_EXPECTED = {
    "n": _BIG,
    "price": 0.1,
    "exact": "0.1000000000000000000001",
    "huge": 1e300,
    "nothing": "NaN",
    "at": "2026-11-01T04:00:00.000000Z",
    "camera": {"angle": 12.75, "ids": [1, None, "a"]},
    "key with 'quotes\"": "\u202e\ud800",
}


def write(fake: PictureStore, folder: Path, name: str, **options: Any) -> DatasetSummary:
    inferences = Client("sync").make_answered(fake).model("m").inferences()
    summary = inferences.to_dataset(name, folder, **options)
    assert isinstance(summary, DatasetSummary)
    return summary


def load(folder: Path) -> Any:
    return json.loads((folder / "annotations.json").read_text())


def load_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def make_street() -> PictureStore:
    first = [
        make_prediction(0, "person", (10, 20, 110, 70), score=0.25),
        make_prediction(1, "car", (-10, -10, 400, 120), score=None),
        make_prediction(2, "car", (400, 10, 500, 20)),
        make_prediction(3, "cat"),
        make_prediction(4, None, (1, 2, 3, 4)),
    ]
    bus = make_prediction(0, "bus", (0.25, 0.5, 0.5, 1))
    return PictureStore(
        [
            make_inference(1, *first, metadata=_METADATA),
            make_inference(2, prediction_count=None),
            make_inference(3, bus, flags=["box_in_shares"]),
        ]
    )


def test_coco_with_all_or_given_classes(tmp_path: Path) -> None:
    summary = write(make_street(), tmp_path / "coco", "coco")
    assert summary.dropped == {"outside": 1, "no_shape": 1}
    assert summary.remarks == {"clipped": 1, "unpredicted": 1}
    coco = load(tmp_path / "coco")
    assert coco["licenses"] == []
    categories = [(category["id"], category["name"]) for category in coco["categories"]]
    assert categories == [(1, "bus"), (2, "car"), (3, "person"), (4, "unlabelled")]
    [first, _, _] = coco["images"]
    assert (first["id"], first["width"], first["height"]) == (1, WIDTH, HEIGHT)
    assert (first["inference_id"], first["metadata"]) == ("frame-1", _EXPECTED)
    picture = tmp_path / "coco" / "images" / first["file_name"]
    assert picture.read_bytes() == make_png(1)
    names = ("id", "image_id", "category_id", "score", "iscrowd", "bbox")
    half = [WIDTH / 4, HEIGHT / 2, WIDTH / 4, HEIGHT / 2]
    assert [[annotation[name] for name in names] for annotation in coco["annotations"]] == [
        [1, 1, 3, 0.25, 0, [10, 20, 100, 50]],
        [2, 1, 2, None, 0, [0, 0, WIDTH, 120]],
        [3, 1, 4, 0.5, 0, [1, 2, 2, 2]],
        [4, 3, 1, 0.5, 0, half],
    ]
    assert [annotation["area"] for annotation in coco["annotations"][:2]] == [5000, WIDTH * 120]
    summary = write(make_street(), tmp_path / "given", "coco", classes=["person", "bike", "bus"])
    assert summary.classes == ("person", "bike", "bus")
    assert summary.dropped == {"outside": 1, "no_shape": 1, "other_class": 2}
    assert [item["category_id"] for item in load(tmp_path / "given")["annotations"]] == [1, 3]


def test_yolo(tmp_path: Path) -> None:
    store = make_street()
    odd = 'ship \u2028"\\é😀\n: #'
    store.items.append(make_inference(4, make_prediction(0, odd, (300, 0, 320, 0.00001))))
    write(store, tmp_path / "yolo", "yolo")
    data = yaml.safe_load((tmp_path / "yolo" / "data.yaml").read_text())
    names = {0: "bus", 1: "car", 2: "person", 3: odd, 4: "unlabelled"}
    assert data == {"train": "images", "val": "images", "nc": 5, "names": names}
    records = load_lines(tmp_path / "yolo" / "inferences.jsonl")
    paths = [record["file_name"].replace("images", "labels") for record in records]
    labels = [(tmp_path / "yolo" / path).with_suffix(".txt").read_text() for path in paths]
    assert labels == [
        "2 0.187500 0.187500 0.312500 0.208333\n"
        "1 0.500000 0.250000 1.000000 0.500000\n"
        "4 0.006250 0.012500 0.006250 0.008333\n",
        "",
        "0 0.375000 0.750000 0.250000 0.500000\n",
        "3 0.968750 0.000001 0.062500 0.000001\n",
    ]
    assert records[0]["scores"] == [0.25, None, 0.5]
    assert records[0]["uid"] == store.items[0]["uid"]
    assert records[0]["metadata"] == _EXPECTED


def test_image_folder(tmp_path: Path) -> None:
    write(make_street(), tmp_path / "faces", "huggingface")
    records = load_lines(tmp_path / "faces" / "metadata.jsonl")
    assert json.loads(records[0]["metadata"]) == _EXPECTED
    assert records[0]["objects"]["label"] == ["person", "car", "unlabelled"]
    assert records[1]["objects"] == {"bbox": [], "label": [], "score": [], "area": []}
    assert all((tmp_path / "faces" / record["file_name"]).is_file() for record in records)


_SCORES = {"cat": 0.75, "a/..": 0.25}


def make_pets() -> PictureStore:
    """Two pictures with a class, one without; the first has a name that is none for a folder."""
    best = make_prediction(0, "a/..", score=0.25, rank=2), make_prediction(1, "cat", score=0.75)
    best[1]["rank"] = 1
    other = make_prediction(0, "a/..", score=None)
    return PictureStore(
        [
            make_inference(1, *best, task_type="Image Classification"),
            make_inference(2, other, task_type=None),
            make_inference(3, make_prediction(0, None, score=0.5, value=3.0), task_type=None),
        ],
        drawings={number: make_drawing(number) for number in (2, 3)},
    )


def test_every_class_has_a_folder_of_its_own(tmp_path: Path) -> None:
    odd = ["", ".", "..", "../x", "/x", "a/b", "x.", " x", "class-0", "Class-1", "class-٣"]
    odd += ["CON", "nul", "com1.txt", "LPT¹", "aux .b", "Cat", "cat", "é" * 51, "x" * 101]
    odd += ["\ufb01sh", "fish", "\ud800", "x\0", "a\nb"]
    plain = ["x", "class-a", "class", "console", "com", "é" * 50, "traffic light (red) 2"]
    inferences = [
        make_inference(
            number, make_prediction(0, label, score=0.5), task_type="Image Classification"
        )
        for number, label in enumerate(odd + plain)
    ]
    drawings = {number: make_drawing(number) for number in range(len(inferences))}
    write(PictureStore(inferences, drawings=drawings), tmp_path / "yolo", "yolo")
    records = load_lines(tmp_path / "yolo" / "inferences.jsonl")
    folders = {record["label"]: Path(record["file_name"]).parts[:-1] for record in records}
    assert len({"/".join(parts).casefold() for parts in folders.values()}) == len(odd + plain)
    assert all(parts[0] == "train" and len(parts) == 2 for parts in folders.values())
    kept = {label for label, (_, name) in folders.items() if name == label}
    assert kept == {*plain}
    assert all(re.fullmatch(r"class-[0-9]+", folders[label][1]) for label in odd)
    assert len([*(tmp_path / "yolo" / "train").iterdir()]) == len(odd + plain)


def test_the_best_label_is_the_class_of_the_picture(tmp_path: Path) -> None:
    for name in FORMATS:
        summary = write(make_pets(), tmp_path / name, name)
        assert (summary.pictures, summary.annotations, summary.labels) == (3, 0, 2), name
        assert (summary.classes, summary.dropped) == (("a/..", "cat"), {"no_shape": 1}), name
    coco = load(tmp_path / "coco")
    assert [category["name"] for category in coco["categories"]] == ["a/..", "cat"]
    assert coco["annotations"] == [
        {"id": 1, "image_id": 1, "category_id": 2, "score": 0.75},
        {"id": 2, "image_id": 2, "category_id": 1, "score": None},
    ]
    assert {each["label"]: each["score"] for each in coco["images"][0]["classes"]} == _SCORES
    records = load_lines(tmp_path / "yolo" / "inferences.jsonl")
    folders = [record["file_name"].rpartition("/")[0] for record in records]
    assert folders == ["train/cat", "train/class-0", "images"]
    assert all((tmp_path / "yolo" / record["file_name"]).is_file() for record in records)
    fiftyone = json.loads((tmp_path / "fiftyone" / "classifications.json").read_text())
    assert [*fiftyone["labels"].values()] == [
        {"label": "cat", "confidence": 0.75},
        {"label": "a/..", "confidence": None},
    ]
    rows = load_lines(tmp_path / "huggingface" / "metadata.jsonl")
    assert [(row["label"], row["score"]) for row in rows] == [
        ("cat", 0.75),
        ("a/..", None),
        (None, None),
    ]
    classes = load_lines(tmp_path / "webdataset" / "classes.jsonl")
    with tarfile.open(tmp_path / "webdataset" / "shard-000000.tar") as shard:
        files = [shard.extractfile(each) for each in shard if each.name.endswith(".cls")]
        indexes = [int(file.read()) for file in files if file is not None]
    assert [classes[index]["label"] for index in indexes] == ["cat", "a/.."]


def test_a_class_that_is_not_wanted_is_dropped(tmp_path: Path) -> None:
    summary = write(make_pets(), tmp_path / "yolo", "yolo", classes=["dog", "cat"])
    assert (summary.labels, summary.dropped) == (1, {"other_class": 1, "no_shape": 1})
    whole = make_pets()
    del whole.items[2]
    write(whole, tmp_path / "pets", "yolo")
    names = sorted(path.name for path in (tmp_path / "pets").iterdir())
    assert names == ["README.md", "inferences.jsonl", "train"]


def test_a_picture_may_have_a_class_and_boxes(tmp_path: Path) -> None:
    both = make_prediction(0, "street"), make_prediction(1, "car", (1, 2, 30, 40))
    fake = PictureStore([make_inference(1, *both, task_type=None)], drawings={1: make_drawing(1)})
    for name in FORMATS:
        summary = write(fake, tmp_path / name, name)
        assert (summary.annotations, summary.labels, summary.dropped) == (1, 1, {}), name
    [record] = load_lines(tmp_path / "yolo" / "inferences.jsonl")
    assert record["file_name"].startswith("images/")
    assert (tmp_path / "yolo" / "data.yaml").is_file()
    assert len(load(tmp_path / "coco")["annotations"]) == 2


def test_a_text_has_a_class_too(tmp_path: Path) -> None:
    sentences = {1: b"good", 2: b'{"age": 5}', 3: b"\xff"}
    kinds = {1: "text/plain", 2: "application/json; charset=utf-8", 3: "text/plain"}
    items = [
        make_inference(n, make_prediction(0, "fine"), data_content_type=kinds[n], task_type=task)
        for n, task in enumerate(("Text Classification", "tabular", None), 1)
    ]
    for name in ("huggingface", "webdataset", "coco"):
        fake = PictureStore(items, contents={**sentences}, drawings={3: make_drawing(3)})
        summary = write(fake, tmp_path / name, name)
        texts = 0 if name == "coco" else 2
        assert (summary.pictures, summary.labels) == (texts, texts), name
        assert summary.left_out == {"not_a_picture": 3 - texts}, name
    rows = load_lines(tmp_path / "huggingface" / "data.jsonl")
    assert [(row["text"], row["label"]) for row in rows] == [
        ("good", "fine"),
        ('{"age": 5}', "fine"),
    ]
    [members] = read_shards(tmp_path / "webdataset")
    assert [each.name.rpartition(".")[2] for each in members] == ["txt", "json", "cls"] * 2


def read_shards(folder: Path) -> list[list[tarfile.TarInfo]]:
    shards = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as shard:
            shards.append(shard.getmembers())
    return shards


def test_webdataset(tmp_path: Path) -> None:
    fake = PictureStore([make_inference(n) for n in range(20)])
    size = 20_480
    write(fake, tmp_path / "small", "webdataset", shard_bytes=size)
    write(fake, tmp_path / "again", "webdataset", shard_bytes=size)
    write(make_street(), tmp_path / "street", "webdataset")
    shards = read_shards(tmp_path / "small")
    members = [member for shard in shards for member in shard]
    assert [member.name for member in members] == [
        f"{item['uid']}.{suffix}" for item in fake.items for suffix in ("png", "json")
    ]
    assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {
        (0, 0, "", 0o644)
    }
    paths = [*(tmp_path / "small").glob("*.tar")]
    assert len(paths) > 1
    assert all(path.stat().st_size <= size for path in paths)
    assert all((tmp_path / "again" / path.name).read_bytes() == path.read_bytes() for path in paths)
    with tarfile.open(tmp_path / "street" / "shard-000000.tar") as shard:
        file = shard.extractfile(shard.getmembers()[1])
        assert file is not None
        record = json.load(file)
    assert record["metadata"] == _EXPECTED
    assert [item["label"] for item in record["annotations"]] == ["person", "car", "unlabelled"]


def make_shape(kind: str, ordinal: int, points: Any, keypoints: Any = None) -> dict[str, Any]:
    known = {"rank": 1, "label": "cell", "score": 0.5, "box": None, "oriented": None}
    return {"kind": kind, "ordinal": ordinal, "points": points, "keypoints": keypoints, **known}


def make_drawing(number: int, *shapes: Any, problem: str | None = None) -> dict[str, Any]:
    uid = make_inference(number)["uid"]
    known = {"width": None, "height": None, "units": "pixels", "without_shape": 0}
    return {"uid": uid, "shapes": [*shapes], "problem": problem, **known}


def test_contours_are_polygons(tmp_path: Path) -> None:
    cells = [make_prediction(n, "cell", box) for n, box in enumerate([_CUT, (50, 50, 60, 60)])]
    items = [
        make_inference(1, *cells, task_type="Image Segmentation"),
        make_inference(2, make_prediction(0, "cell", (5, 5, 6, 6)), task_type=None),
        make_inference(3, task_type="image-segmentation"),
    ]
    square = [[-10, 10], [10, 10], [10, 30], [-10, 30]]
    drawing = make_drawing(
        1,
        make_shape("polygon", 0, square),
        make_shape("polygon", 0, [[30, 30], [40, 30], [40, 40]]),
        make_shape("polygon", 0, [[1, 1], [2, 2]]),
        make_shape("polygon", 1, [[50, 50], [60, 50], [60, 60], [50, 60]]),
    )
    drawings = {1: drawing, 2: make_drawing(2, problem="The response has been deleted.")}
    fake = PictureStore(items, drawings=drawings)
    summary = write(fake, tmp_path / "coco", "coco")
    assert summary.remarks == {"clipped": 1, "without_outline": 1}
    [first, second, third] = load(tmp_path / "coco")["annotations"]
    assert len(first["segmentation"]) == 2
    assert (first["bbox"], first["area"]) == ([0, 10, 40, 30], 200 + 50)
    assert second["segmentation"] == [[50, 50, 60, 50, 60, 60, 50, 60]]
    assert "segmentation" not in third
    asked = [request for request in fake.requests if request.url.path.endswith("/drawing")]
    assert len(asked) == 2
    fake.requests.clear()
    write(fake, tmp_path / "yolo", "yolo")
    assert not [request for request in fake.requests if request.url.path.endswith("/drawing")]


def test_oriented_boxes_are_turned_among_pixels(tmp_path: Path) -> None:
    turned = {"cx": 0.5, "cy": 0.5, "w": 0.25, "h": 0.5, "angle": pi / 2}
    fake = PictureStore([make_inference(1, make_prediction(0, "ship", **turned))])
    write(fake, tmp_path / "coco", "coco")
    [annotation] = load(tmp_path / "coco")["annotations"]
    assert annotation["bbox"] == pytest.approx([100, 80, 120, 80])
    assert annotation["area"] == pytest.approx(9600)
    assert len(annotation["segmentation"][0]) == 8


def test_keypoints_are_those_of_their_category(tmp_path: Path) -> None:
    points = [[10, 20], [30, 40], [-5, 5]]
    known = [
        {"index": 0, "name": "nose", "score": 0.5},
        {"index": 2, "name": None, "score": None},
        {"index": 3, "name": "knee", "score": None},
    ]
    pose = [make_shape("keypoints", 0, points, known)]
    person = make_prediction(0, "person", (5, 5, 50, 50))
    items = [
        make_inference(1, person, task_type="Pose Estimation"),
        make_inference(2, person, task_type="keypoints"),
    ]
    fake = PictureStore(items, drawings={1: make_drawing(1, *pose), 2: make_drawing(2)})
    write(fake, tmp_path / "coco", "coco")
    coco = load(tmp_path / "coco")
    [category] = coco["categories"]
    assert category["keypoints"] == ["nose", "keypoint_1", "keypoint_2"]
    assert [item["keypoints"] for item in coco["annotations"]] == [
        [10, 20, 2, 0, 0, 0, 30, 40, 2],
        [0] * 9,
    ]
    assert [item["num_keypoints"] for item in coco["annotations"]] == [2, 0]
