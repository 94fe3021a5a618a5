"""Print which suffixes of pictures the readers of folders take, by the name of the format."""

import json
import sys
from contextlib import redirect_stdout

with redirect_stdout(sys.stderr):  # it prints where its settings are, the first time
    from ultralytics.data.utils import IMG_FORMATS

from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

if __name__ == "__main__":
    names = [name.removeprefix(".") for name in ImageFolder.EXTENSIONS]
    print(json.dumps({"yolo": sorted(IMG_FORMATS), "huggingface": names}))
