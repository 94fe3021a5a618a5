"""The version before this schema as an image and a chart: what an upgrade begins with."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from inference_store.platform import settings
from tests.e2e.upgrade.version import ROOT, Version, before_this_schema
from tests.servers.missing import NOTES

from .images import CHART, built_image, script

IMAGE = "localhost/inference-store:before"
_MIGRATIONS = """
COPY migrations /opt/inference-store/migrations
USER 0:0
RUN package=$(python -c 'import inference_store; print(*inference_store.__path__)') && \\
    ln -sfn /opt/inference-store/migrations "$package/../../migrations"
USER 10001:10001
"""


@dataclass(frozen=True)
class Before:
    """What is installed first."""

    image: str
    chart: Path
    migrates: bool
    """Whether an upgrade from it changes the schema."""


def built_before(folder: Path) -> Before:
    """Its image, and its chart; `folder`: where its source is laid, out of git."""
    found = before_this_schema(folder)
    if found is None:
        NOTES.append(
            "Git knows no version with another schema: the release was upgraded from this version"
            " under another tag."
        )
        subprocess.run(["buildah", "tag", built_image(), IMAGE], check=True)
        return Before(IMAGE, CHART, migrates=False)
    chart = found.source / CHART.relative_to(ROOT)
    whole = (chart / "Chart.yaml").exists() and (found.source / "Dockerfile").exists()
    if not whole:
        _make_whole(found)
    NOTES.append(
        f"The release was upgraded from {found.name},"
        f" installed with {'its own chart' if whole else 'the present chart'}."
    )
    _build(found)
    return Before(IMAGE, chart if whole else CHART, migrates=True)


def _build(found: Version) -> None:
    try:
        script("build-image.sh", IMAGE, str(found.source))
    except AssertionError:  # between two releases a version may not lock what its image needs
        for file in (ROOT / "Dockerfile", ROOT / ".dockerignore", *ROOT.glob("requirements*.lock")):
            shutil.copy(file, found.source / file.name)
        NOTES.append(f"{found.name} cannot build its image: it was built with the present locks.")
        script("build-image.sh", IMAGE, str(found.source))


def _make_whole(found: Version) -> None:
    """A version that is older than the image and the chart gets the present ones: migrations
    where it looks for them, and none of the settings that it would refuse."""
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(ROOT / name, found.source / name)
    unknown = sorted(set(settings.names()) - found.known())
    without = [part for name in unknown for part in ("-u", name)]
    entrypoint = json.dumps(["env", *without, "inference-store"])
    with (found.source / "Dockerfile").open("a") as file:
        file.write(f"{_MIGRATIONS}ENTRYPOINT {entrypoint}\n")
