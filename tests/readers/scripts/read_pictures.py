"""Read a dataset with the library that it is for: read_pictures.py FORMAT FOLDER.

Prints a list of pictures as JSON: the stem of the file, the size, and each object with label, box
(left, top, width, height in pixels) and what else the reader gives; and the class of the whole. Of
a text, which some formats hold too: the stem and the text.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final


def read_coco(folder: Path) -> Iterator[Any]:
    """By pycocotools: also the mask's pixels of what has a polygon."""
    from pycocotools.coco import COCO

    coco = COCO(folder / "annotations.json")
    for image in coco.loadImgs(coco.getImgIds()):
        objects, whole = [], None
        for annotation in coco.loadAnns(coco.getAnnIds(image["id"])):
            label = coco.loadCats(annotation["category_id"])[0]["name"]
            if "bbox" not in annotation:
                whole = label
                continue
            known = {"label": label, "box": annotation["bbox"], "score": annotation["score"]}
            if "segmentation" in annotation:
                known["mask"] = int(coco.annToMask(annotation).sum())
            if annotation.get("num_keypoints"):
                known["keypoints"] = annotation["keypoints"]
            objects.append(known)
        yield _make_picture(image["file_name"], (image["width"], image["height"]), objects, whole)


def read_yolo(folder: Path) -> Iterator[Any]:
    """By the loader of ultralytics, which leaves out what it finds corrupt."""
    from PIL import Image
    from ultralytics.data.dataset import YOLODataset
    from ultralytics.data.utils import check_det_dataset

    data = check_det_dataset(str(folder / "data.yaml"), autodownload=False)
    loader = YOLODataset(img_path=data["train"], data=data, task="detect", augment=False)
    for index, label in enumerate(loader.labels):
        height, width = loader.get_image_and_label(index)["ori_shape"]
        objects = []
        for number, (x, y, w, h) in zip(label["cls"], label["bboxes"].tolist(), strict=True):
            box = [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]
            objects.append({"label": data["names"][int(number[0])], "box": box})
        yield _make_picture(label["im_file"], (width, height), objects)
    for path in folder.glob("train/*/*"):  # as its loader of classes reads them, by torchvision
        with Image.open(path) as picture:
            yield _make_picture(path.name, picture.size, [], path.parent.name)


def read_fiftyone(folder: Path) -> Iterator[Any]:
    """By FiftyOne's importer, which needs no database."""
    from fiftyone.utils.coco import COCODetectionDatasetImporter
    from fiftyone.utils.data.importers import FiftyOneImageClassificationDatasetImporter

    with FiftyOneImageClassificationDatasetImporter(
        data_path=str(folder / "data"), labels_path=str(folder / "classifications.json")
    ) as classified:
        classes = {Path(path).name: label.label for path, _, label in classified}
    types = ["detections", "segmentations", "keypoints"]
    importer = COCODetectionDatasetImporter(dataset_dir=str(folder), label_types=types)
    with importer:
        for path, metadata, labels in importer:
            width, height = metadata.width, metadata.height
            found = (labels or {}).get("detections")
            objects = [
                {
                    "label": each.label,
                    "box": _scale(each.bounding_box, width, height),
                    "score": each.confidence,
                }
                for each in (found.detections if found else ())
            ]
            yield _make_picture(path, (width, height), objects, classes.get(Path(path).name))


def read_huggingface(folder: Path) -> Iterator[Any]:
    """By `datasets`, which opens each picture with Pillow."""
    from datasets import load_dataset

    loaded = load_dataset("imagefolder", data_dir=str(folder), split="train")
    loaded = loaded.class_encode_column("label")
    names = loaded.features["label"].names
    for row in loaded:
        rows = row["objects"]
        objects = [
            {"label": label, "box": box, "score": score}
            for label, box, score in zip(rows["label"], rows["bbox"], rows["score"], strict=True)
        ]
        whole = None if row["label"] is None else names[row["label"]]
        picture = _make_picture(row["uid"], row["image"].size, objects, whole)
        yield picture | {"metadata": json.loads(row["metadata"])}
    texts = load_dataset("json", data_files=str(folder / "data.jsonl"), split="train")
    yield from ({"uid": row["uid"], "text": row["text"]} for row in texts)


def read_webdataset(folder: Path) -> Iterator[Any]:
    """By `webdataset`, which opens each picture with Pillow."""
    import webdataset

    lines = (folder / "classes.jsonl").read_text().splitlines()
    names = {known["index"]: known["label"] for known in map(json.loads, lines)}
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    for sample in webdataset.WebDataset(shards, shardshuffle=False).decode("pil"):
        record = sample["json"]
        if "txt" in sample:
            yield {"uid": sample["__key__"], "text": sample["txt"]}
            continue
        objects = [
            {"label": each["label"], "box": each["bbox"], "score": each["score"]}
            for each in record["annotations"]
        ]
        whole = names.get(sample.get("cls"))
        picture = _make_picture(sample["__key__"], sample["png"].size, objects, whole)
        yield picture | {"metadata": record["metadata"]}


def _make_picture(
    file: str, size: tuple[int, int], objects: list[Any], whole: str | None = None
) -> dict[str, Any]:
    return {"uid": Path(file).stem, "size": [*size], "objects": objects, "label": whole}


def _scale(box: list[float], width: int, height: int) -> list[float]:
    left, top, across, down = box
    return [left * width, top * height, across * width, down * height]


READERS: Final[dict[str, Callable[[Path], Iterator[Any]]]] = {
    "coco": read_coco,
    "yolo": read_yolo,
    "fiftyone": read_fiftyone,
    "huggingface": read_huggingface,
    "webdataset": read_webdataset,
}

if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # libraries print there
        pictures = [*READERS[sys.argv[1]](Path(sys.argv[2]))]
    print(json.dumps(pictures))
