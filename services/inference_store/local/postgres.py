"""Postgres 18 from a wheel: initialised once, then started on a port of 127.0.0.1."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from .errors import LocalStackError
from .folder import LocalFolder
from .leftover_processes import end
from .part import READY_SECONDS, Part, RunningPart
from .ports import HOST
from .postgres_home import PostgresHome, find_home

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
    folder (our pid file of it was lost) is ended.
    """
    lock = data / "postmaster.pid"
    with suppress(FileNotFoundError, psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        process = psutil.Process(int(lock.read_text().splitlines()[0]))
        if str(data) in process.cmdline():
            end(process, STOP_SIGNAL)
        else:
            lock.unlink()
