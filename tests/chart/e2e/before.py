"""The version before this schema, as the image and the chart that an upgrade begins with."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from inference_store.platform import settings
from tests.e2e.upgrade.version import ROOT, Version, find_version_before
from tests.servers.missing import NOTES

from .images import CHART, build_image, run_script

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
    """The version that is installed first."""

    image: str
    chart: Path
    migrates: bool
    """True if an upgrade from it changes the schema."""


def build_before(folder: Path) -> Before:
    """Build the image of the version before; `folder`: where its source is checked out."""
    version = find_version_before(folder)
    if version is None:
        NOTES.append(
            "Git knows no version with another schema: the release was upgraded from this version"
            " under another tag."
        )
        subprocess.run(["buildah", "tag", build_image(), IMAGE], check=True)
        return Before(IMAGE, CHART, migrates=False)
    chart = version.source / CHART.relative_to(ROOT)
    whole = (chart / "Chart.yaml").exists() and (version.source / "Dockerfile").exists()
    if not whole:
        _complete_source(version)
    NOTES.append(
        f"The release was upgraded from {version.name},"
        f" installed with {'its own chart' if whole else 'the present chart'}."
    )
    _build(version)
    return Before(IMAGE, chart if whole else CHART, migrates=True)


def _build(version: Version) -> None:
    try:
        run_script("build-image.sh", IMAGE, str(version.source))
    except AssertionError:
        # Between two releases the locks of a version may lack what its image needs.
        for file in (ROOT / "Dockerfile", ROOT / ".dockerignore", *ROOT.glob("requirements*.lock")):
            shutil.copy(file, version.source / file.name)
        NOTES.append(f"{version.name} cannot build its image: it was built with the present locks.")
        run_script("build-image.sh", IMAGE, str(version.source))


def _complete_source(version: Version) -> None:
    """Give a version without an image and a chart the present Dockerfile.

    It has the migrations where the version looks for them, without settings that it refuses.
    """
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(ROOT / name, version.source / name)
    unknown = sorted(set(settings.names()) - version.find_settings())
    without = [part for name in unknown for part in ("-u", name)]
    entrypoint = json.dumps(["env", *without, "inference-store"])
    with (version.source / "Dockerfile").open("a") as file:
        file.write(f"{_MIGRATIONS}ENTRYPOINT {entrypoint}\n")
