"""The formats: one list, which the methods, the command line and the docs follow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from inference_store_client.errors import SettingsError

from .coco import CocoWriter
from .examples import DatasetWriter
from .huggingface import ImageFolderWriter
from .webdataset import WebDatasetWriter
from .yolo import YoloWriter


@dataclass(frozen=True, slots=True)
class DatasetFormat:
    """A format: its name, what must be installed, and what writes it."""

    name: str
    title: str
    make_writer: Callable[[Path], DatasetWriter]
    has_outlines: bool = False
    """Whether contours and keypoints are in it; each is a request more for an inference."""
    unsupported: frozenset[str] = frozenset()
    """Suffixes of pictures that its readers skip."""
    extra: str = "datasets"
    """What must be installed: `'./client[…]'`."""


def _list(*formats: DatasetFormat) -> Mapping[str, DatasetFormat]:
    return MappingProxyType({each.name: each for each in formats})


FORMATS: Final = _list(
    DatasetFormat("coco", "COCO", CocoWriter, has_outlines=True),
    DatasetFormat("yolo", "YOLO", YoloWriter, unsupported=frozenset({"gif"})),
    DatasetFormat(
        "fiftyone",
        "FiftyOne",
        partial(CocoWriter, pictures="data", file="labels.json"),
        has_outlines=True,
    ),
    DatasetFormat(
        "huggingface",
        "Hugging Face datasets",
        ImageFolderWriter,
        unsupported=frozenset({"avif"}),
    ),
    DatasetFormat("webdataset", "WebDataset", WebDatasetWriter, has_outlines=True),
)
"""Every format by name."""


def find_format(name: str) -> DatasetFormat:
    """Return the format of a name. Raises SettingsError."""
    try:
        return FORMATS[name]
    except KeyError:
        raise SettingsError(f"no format {name!r}: there are {', '.join(FORMATS)}") from None
