"""The upstreams' own Python: MLServer, and what its models need, all pinned.

Nothing of it is in the tests' environment: MLServer and the product want other versions of the
same packages."""

import platform
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tests.servers.cache import install
from tests.servers.versions import MissingServer, cache_folder

HERE = Path(__file__).parent
ENGINES = HERE / "engines"
_PINS = HERE.parents[1] / "requirements-tools.txt"
_PREPARE = ENGINES / "prepare.py"
TOO_NEW = (3, 13)
"""The first Python that MLServer and KServe cannot be installed on."""


def find_upstreams() -> Path:
    """The environment's folder, made if it is not there (a minute). Raises MissingServer.

    bin/ is its Python's; models/ holds what was trained.
    """
    check_python()
    return install(cache_folder("upstreams", version_of("mlserver", _PREPARE)), _build)


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


def packages_of(environment: Path) -> Path:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / python / "site-packages"


def version_of(environment: str, *files: Path) -> str:
    """Names what pins, files and this Python make: another pin is another environment."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    made_of = sha256((python + read_pins(environment)).encode())
    for file in files:
        made_of.update(file.read_bytes())
    return made_of.hexdigest()[:12]


def read_pins(environment: str) -> str:
    """The section of an environment in requirements-tools.txt: a pinned package a line."""
    return _PINS.read_text().partition(f"# [{environment}]\n")[2].partition("\n# [")[0]


def make_environment(folder: Path, environment: str, *options: str) -> None:
    """A Python with what is pinned, which still works when it is moved. Raises MissingServer."""
    uv = str(Path(sys.executable).with_name("uv"))
    python = python_of(folder)
    said = ("--quiet", "--allow-existing", "--relocatable", "--python", sys.executable)
    run_to_build((uv, "venv", *said, str(folder)))
    pins = folder / "requirements.txt"
    pins.write_text(read_pins(environment))
    install_into = (uv, "pip", "install", "--quiet", "--no-deps", "--compile-bytecode")
    run_to_build((*install_into, "--python", python, *options, "-r", str(pins)))


def run_to_build(command: Sequence[str]) -> None:
    """Run one step of a build. Raises MissingServer with the end of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as exc:
        raise MissingServer(f"{command[0]} could not be run: {exc}") from exc
    if done.returncode:
        said = " ".join(done.stderr.split())[-500:].rstrip(".")
        raise MissingServer(f"{Path(command[0]).name} failed: {said}")


def check_python() -> None:
    """Raises MissingServer where this Python is too new for what has to be installed."""
    if sys.version_info >= TOO_NEW:
        newest, here = ".".join(map(str, TOO_NEW)), platform.python_version()
        raise MissingServer(f"MLServer and KServe need a Python before {newest}; here is {here}")


def _build(folder: Path) -> None:
    make_environment(folder, "mlserver")
    run_to_build((python_of(folder), "-P", str(_PREPARE), str(folder)))


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_OF_DEBIAN = Path("/usr/lib/python3/dist-packages")


def find_torch(name: str = "torch") -> Path:
    """The package's folder, `torch` or `torchvision`. Raises MissingServer."""
    found = _OF_DEBIAN / name
    if not list(found.glob(f"_C.cpython-{_PYTHON.replace('.', '')}-*.so")):
        raise MissingServer(f"{name} for Python {_PYTHON} is not here (Debian: python3-{name})")
    return found


def link_torch(packages: Path, *names: str) -> None:
    """Link it, or the packages that are named, into an environment's packages."""
    for name in names or ("torch",):
        for each in (find_torch(name), *_OF_DEBIAN.glob(f"{name}-*.egg-info")):
            (packages / each.name).symlink_to(each)
