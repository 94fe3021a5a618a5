"""Reads the tar files of an export with `webdataset`, which opens each picture with Pillow, and
prints what it sees of each sample."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import webdataset

_PICTURES = ("jpg", "png")


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return of each sample its key, its inference, and its files with the size of a picture."""
    parts = [str(path) for path in sorted(folder.glob("*.tar"))]
    samples = webdataset.WebDataset(parts, shardshuffle=False).decode("pil")
    return [
        {
            "key": sample["__key__"],
            "inference": sample["json"],
            "files": {
                name: [*content.size] if name in _PICTURES else len(content)
                for name, content in sample.items()
                if not name.startswith("__") and name != "json"
            },
        }
        for sample in samples
    ]


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # libraries print there
        found = read_samples(Path(sys.argv[1]))
    print(json.dumps(found))
