"""Postgres 15 to 18: Debian's if it is installed, otherwise the binaries of a wheel."""

import asyncio
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from inference_store.local.folder import LocalFolder, LocalStackError
from inference_store.local.postgres import find_home

from .ports import free_port
from .process import LeashedProcess
from .server import SHARED_TEMPORARY, Server
from .versions import POSTGRES_VERSIONS, MissingServer
from .waiting import wait_until

_DEBIAN = Path("/usr/lib/postgresql")


class Postgres:
    """A running Postgres, ours or another one, that creates and drops databases."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def dsn_of(self, database: str) -> str:
        """Return the address of another database of the same server."""
        return urlsplit(self.dsn)._replace(path=f"/{database}").geturl()

    def execute(self, *statements: str) -> None:
        """Run statements, each in its own transaction; from any thread, in a loop or not."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _execute(self.dsn, statements)).result()

    def ask(self, question: str) -> Any:
        """Return the first value of the answer; from any thread, in a loop or not."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _ask(self.dsn, question)).result()

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database as a copy of `template`, and return its address."""
        # Copying files takes half as long as logging every block.
        self._execute_once_unused(
            f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy'
        )
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database in spite of connections; one that does not exist is no error."""
        self._execute_once_unused(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute_once_unused(self, statement: str) -> None:
        """Run a statement as soon as nobody uses its database: Postgres itself waits five seconds
        for sessions to end, and on a busy machine one may take longer."""

        def is_done() -> bool:
            try:
                self.execute(statement)
            except asyncpg.ObjectInUseError:
                return False
            return True

        wait_until(is_done, seconds=120, what=statement)


async def _ask(dsn: str, question: str) -> Any:
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def _execute(dsn: str, statements: tuple[str, ...]) -> None:
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


class PostgresServer(Server, Postgres):
    """A Postgres of our own. `settings` are options of postgresql.conf.

    `fsync` is off: what is written survives the death of any process, not of the machine.
    A benchmark passes `{"fsync": "on"}`. `binaries` is a folder other than what is found;
    `initdb` are more options of initdb. Its data are in `data`, which may be a mounted disk.
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # the fast shutdown: clients are cut off
    last_signal = signal.SIGQUIT  # the immediate one, which takes the children along

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        binaries: Path | None = None,
        initdb: Sequence[str] = (),
        parent: str | None = SHARED_TEMPORARY,
    ) -> None:
        self._binaries = binaries or find_postgres()
        Server.__init__(self, parent)
        self.port = free_port()
        Postgres.__init__(self, f"postgresql://postgres@127.0.0.1:{self.port}/postgres")
        self._settings = {
            "fsync": "off",
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            **(settings or {}),
        }
        self._initdb = initdb
        self.user = _unprivileged_user()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _launch(self) -> LeashedProcess:
        data = self.data
        if not (data / "PG_VERSION").exists():
            self._initialise(data)
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = [str(self._binaries / "postgres"), "-D", str(data), "-p", str(self.port)]
        return self._run(command + options, user=self.user)

    def give_folder(self, path: Path) -> None:
        self._give_files(path, *path.rglob("*"), self.folder)

    def _initialise(self, data: Path) -> None:
        self._give_files(self.folder)
        command = [str(self._binaries / "initdb"), "-D", str(data), "-U", "postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", *self._initdb]
        process = self._run(command, user=self.user)
        if process.wait(180):
            raise RuntimeError(f"initdb failed\n{process.last_lines()}")

    def _give_files(self, *paths: Path) -> None:
        """Give files to the user that the server runs as."""
        for path in paths:
            if self.user:
                shutil.chown(path, self.user)

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except (OSError, asyncpg.PostgresError):
            return False
        return True


def find_postgres() -> Path:
    """Return the folder with the binaries of the newest version. Raises MissingServer."""
    for _, binaries in installed():
        return binaries
    return wheel_binaries()


def installed() -> Iterator[tuple[int, Path]]:
    """Yield the installed versions of Debian with their binaries, newest first."""
    for version in reversed(POSTGRES_VERSIONS):
        binaries = _DEBIAN / str(version) / "bin"
        if (binaries / "initdb").exists():
            yield version, binaries


def wheel_binaries() -> Path:
    """Return the wheel's Postgres, in a place that its user can reach. Raises MissingServer."""
    with tempfile.TemporaryDirectory(dir=SHARED_TEMPORARY) as path:
        Path(path).chmod(0o755)
        try:
            return find_home(LocalFolder(Path(path))).binaries
        except LocalStackError as exc:
            raise MissingServer(f"Debian's Postgres is not installed, and: {exc}") from exc


def _unprivileged_user() -> str:
    """Return the user to run Postgres as, since it refuses root; "" for the current user."""
    if os.geteuid() != 0:
        return ""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
