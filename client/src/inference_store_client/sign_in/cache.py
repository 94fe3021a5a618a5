"""The sign-ins of a user, by the origin of the store: a file that its owner alone may read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_store_client.errors import SettingsError
from inference_store_client.origin import Origin
from inference_store_client.private_files import read_private, write_private

from .tokens import Tokens


@dataclass(frozen=True, slots=True)
class TokenCache:
    """The file with the sign-ins."""

    path: Path

    def find(self, origin: Origin) -> Tokens | None:
        """Return the sign-in to a store; None: there is none. Raises SettingsError."""
        members = self._read().get(origin.name)
        if members is None:
            return None
        try:
            return Tokens.from_json(members)
        except ValueError as wrong:
            raise SettingsError(f"{self.path}: {wrong}: istore login") from None

    def put(self, origin: Origin, tokens: Tokens) -> None:
        """Write the sign-in to a store. The caller holds the lock."""
        self._write({**self._read(), origin.name: tokens.to_json()})

    def remove(self, origin: Origin) -> None:
        """Forget the sign-in to a store. The caller holds the lock."""
        self._write({name: kept for name, kept in self._read().items() if name != origin.name})

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process changes the file, and keep others from it.

        A refresh token may be good for one use: of two processes that renew, one must wait, and
        then read what the other wrote.
        """
        if os.name != "posix":
            yield
            return
        import fcntl  # noqa: PLC0415 -- of POSIX alone

        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as wrong:
            raise SettingsError(f"{self.path.parent}: {wrong.strerror}") from wrong
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _read(self) -> dict[str, Any]:
        content = read_private(self.path)
        if content is None:
            return {}
        try:
            members = json.loads(content)
        except ValueError:
            members = None
        if not isinstance(members, dict):
            raise SettingsError(f"{self.path} has no sign-ins: remove it, and istore login")
        return members

    def _write(self, members: dict[str, Any]) -> None:
        write_private(self.path, json.dumps(members, indent=1).encode())
