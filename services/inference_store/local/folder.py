"""The folder of a local stack, its ports, and the errors that keep it from starting."""

import fcntl
import json
import os
import secrets
import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from inference_store.erasure.log import new_key


class LocalStackError(Exception):
    """The local stack cannot start or go on; the message says why and what to do."""


class PartEnded(LocalStackError):
    """A process of the stack ended by itself."""

    def __init__(self, name: str, exit_code: int | None, log: str, last_lines: str) -> None:
        super().__init__(f"{name} ended with code {exit_code}; the end of {log}:\n{last_lines}")


class PartNotReady(LocalStackError):
    """A process of the stack runs, and does not become ready."""

    def __init__(self, name: str, seconds: float, reason: str, log: str) -> None:
        super().__init__(f"{name} was not ready after {seconds:.0f} s: {reason}; see {log}")


def find_package(name: str) -> Path:
    """Return the folder of an installed package, without importing it. Raises LocalStackError."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise LocalStackError(
            f"The package {name} is missing: install 'inference-store[demo]', or run `make demo`."
        )
    return Path(spec.submodule_search_locations[0])


HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that no program listens on now."""
    with ExitStack() as stack:
        # All bound at once, or the system could give one port twice.
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in held:
            bound.bind((HOST, 0))
        return [bound.getsockname()[1] for bound in held]


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` now."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError:
            return False
        return True


def free_from(first: int | None, *, without: frozenset[int]) -> int:
    """Return the next free port from `first` on; any free one for None, or if the next hundred are
    in use. Never one of `without`."""
    near = () if first is None else range(first, min(first + 100, 65536))
    candidates = (*filter(is_free, near), *free_ports(len(without) + 1))
    return next(port for port in candidates if port not in without)


NAME = ".inference-store"


@dataclass(frozen=True, slots=True)
class Passwords:
    """Made once for a folder: other users of the machine reach our ports on 127.0.0.1 too."""

    postgres: str
    s3_access_key: str
    s3_secret_key: str


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """The folder of one local stack."""

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run(self) -> Path:
        """Settings and addresses of what runs now."""
        return self.path / "run"

    @property
    def s3(self) -> Path:
        """Object storage: one folder for each bucket."""
        return self.path / "s3"

    @property
    def spool(self) -> Path:
        """Captures on their way, which outlive a kill."""
        return self.path / "spool"

    @property
    def drained(self) -> Path:
        """A file that is there if the index has all that the last stack captured."""
        return self.path / "drained"

    @property
    def settings(self) -> Path:
        """The settings of what runs now, as a shell reads them."""
        return self.run / "settings.env"

    def make(self) -> None:
        """Make the folders. Others may pass through the first, never list it (Postgres may run
        as another user below it); the rest is ours alone."""
        self.path.mkdir(mode=0o711, parents=True, exist_ok=True)
        for inner in (self.logs, self.run, self.s3):
            inner.mkdir(mode=0o700, exist_ok=True)

    def passwords(self) -> Passwords:
        """Return the passwords of this folder, made at the first call."""
        file = self.path / "passwords.json"
        if not file.exists():
            passwords = {name: secrets.token_hex(16) for name in Passwords.__slots__}
            _write_secret(file, json.dumps(passwords))
        return Passwords(**json.loads(file.read_text()))

    def certificate_key(self) -> Path:
        """Return the file of the key that signs certificates, made at the first call."""
        file = self.path / "certificate-key.pem"
        if not file.exists():
            _write_secret(file, new_key().pem)
        return file

    def write_settings(self, environment: Mapping[str, str]) -> None:
        """Write the settings for other commands. They contain passwords."""
        lines = (f"{name}={shlex.quote(value)}\n" for name, value in environment.items())
        _write_secret(self.settings, "".join(lines))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Lock the folder for this process. The lock ends with the process, however it ends.

        Raises LocalStackError if another process holds it.
        """
        with open(self.path / "lock", "a", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LocalStackError(
                    f"Another local stack runs in {self.path}: stop it first, or start this one "
                    f"in another folder."
                ) from error
            yield


def _write_secret(file: Path, secret: str) -> None:
    """Write a secret file under another name and rename it: a kill leaves no half-written file."""
    half = file.with_suffix(".new")
    half.unlink(missing_ok=True)
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(secret)
    half.replace(file)
