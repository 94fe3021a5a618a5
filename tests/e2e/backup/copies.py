"""The two backups that docs/how-to/backup.md tells of, and the copy of a bucket."""

import getpass
import io
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.minio import S3
from tests.servers.postgres import Postgres, PostgresServer, find_postgres


def run(name: str, *arguments: str) -> None:
    """Run one of Postgres' own programs."""
    command = [str(find_postgres() / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"


class Dump:
    """pg_dump, and pg_restore into a server of its own."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "store.dump"

    def take(self, _server: PostgresServer, dsn: str) -> None:
        run("pg_dump", "--format=custom", f"--file={self._file}", dsn)

    def restore(self, server: PostgresServer, name: str) -> str:
        server.start()
        dsn = Postgres.create_database(server, name)
        run("pg_restore", "--exit-on-error", f"--dbname={dsn}", str(self._file))
        return dsn


class BaseBackup:
    """pg_basebackup of the whole server, and another server on it."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "base"

    def take(self, server: PostgresServer, _dsn: str) -> None:
        user = urlsplit(server.dsn).username or getpass.getuser()
        where = ("--host=127.0.0.1", f"--port={server.port}", f"--username={user}")
        run("pg_basebackup", *where, f"--pgdata={self._data}", "--checkpoint=fast")

    def restore(self, server: PostgresServer, name: str) -> str:
        data = server.folder / "data"
        shutil.copytree(self._data, data)
        data.chmod(0o700)
        server.give_folder(data)
        server.start()
        return server.dsn_of(name)


METHODS: dict[str, type[Dump | BaseBackup]] = {"pg_dump": Dump, "pg_basebackup": BaseBackup}


def mirror(source: S3, target: S3, bucket: str) -> int:
    """Copy what a bucket's copy does not have yet, as `mc mirror` does; how many objects."""
    here, there = source.client(), target.client()
    if not there.bucket_exists(bucket):
        there.make_bucket(bucket)
    copied_names = {item.object_name for item in there.list_objects(bucket, recursive=True)}
    copied = 0
    for item in here.list_objects(bucket, recursive=True):
        if item.object_name not in copied_names:
            data = here.get_object(bucket, item.object_name).read()
            there.put_object(bucket, item.object_name, io.BytesIO(data), len(data))
            copied += 1
    return copied
