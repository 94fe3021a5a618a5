"""Where the store is, and with which key: an argument, else the environment, else a file; and when
a read is sent again.

Without a key, what `istore login` has signed in with is sent.
"""

import os
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

from inference_store_client.sign_in import SignIn, TokenCache

from .errors import SettingsError, StoreError
from .origin import Origin
from .private_files import read_private

URL, KEY = "INFERENCE_STORE_URL", "INFERENCE_STORE_KEY"
_TOKENS: Final = "tokens.json"


_MOST_DOUBLED: Final = 100
"""So many times a wait is doubled: more than any is worth, and fewer than a float takes."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a read is sent again, and how long it waits before; `attempts=1`: never again.

    The wait doubles each time, up to `longest_wait_seconds`, and is shortened at random, so that
    many clients do not return at once. `Retry-After` is honoured: if it is longer than
    `longest_retry_after_seconds`, the refusal is raised at once. A stream that makes progress
    begins to count again.
    """

    attempts: int = 6
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 30.0
    longest_retry_after_seconds: float = 300.0
    at_first_contact: bool = True
    """Whether a refused connection is tried again before the store has ever answered."""

    def find_wait(self, error: StoreError, attempt: int) -> float | None:
        """Return how long to wait before the next attempt; None: there is none.

        `attempt`: the number of the one that failed, from 1.
        """
        least = error.retry_after_seconds
        is_too_long = least > self.longest_retry_after_seconds
        if not error.is_transient or is_too_long or attempt >= self.attempts:
            return None
        doubled = self.first_wait_seconds * 2.0 ** min(attempt - 1, _MOST_DOUBLED)
        wait = min(doubled, self.longest_wait_seconds)
        return max(wait * random.uniform(0.5, 1.0), least)


DEFAULT_RETRIES: Final = Retries(at_first_contact=False)
"""Of who gives none: where nothing has answered yet, the address is probably wrong."""


def read_retry_after(text: str, *, now: datetime | None = None) -> float:
    """Return the seconds that `Retry-After` asks for, as a number or as a date; 0 for none."""
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The address of a store, the key or token to send to it, and how often a read is sent."""

    origin: Origin
    key: str | None = field(default=None, repr=False)
    retries: Retries = DEFAULT_RETRIES
    sign_in: SignIn | None = field(default=None, repr=False)
    """Used if there is no key."""

    def read_key(self) -> str | None:
        """Return the key or token to send now."""
        return self.sign_in.tokens.access_token if self.sign_in is not None else self.key


def get_file() -> Path:
    """Return the path of the user's file: TOML with `url` and `key`."""
    return Path.home() / ".config" / "inference-store" / "config.toml"


def find_settings(
    url: str | None = None,
    key: str | None = None,
    *,
    retries: Retries = DEFAULT_RETRIES,
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> ClientSettings:
    """Return the settings. The key of the file is sent to the address of the file alone.

    Raises SettingsError without an address, and for a file that others may read.
    """
    url, key = url or environment.get(URL), key or environment.get(KEY)
    saved = {} if url and key else _read_file(file or get_file())
    origin = _make_origin(url or saved.get("url"))
    if key is None and "url" in saved and Origin(saved["url"]) == origin:
        key = saved.get("key")
    sign_in, cache = None, get_cache(file)
    if key is None and (tokens := cache.find(origin)) is not None:
        sign_in = SignIn(origin, cache, tokens)
    return ClientSettings(origin, _check_key(key), retries, sign_in)


def find_origin(url: str | None = None) -> Origin:
    """Return the address alone. Raises SettingsError without one."""
    url = url or os.environ.get(URL)
    return _make_origin(url or _read_file(get_file()).get("url"))


def _make_origin(address: str | None) -> Origin:
    if not address:
        raise SettingsError(
            f"no address: --url (in Python Store('https://…')), {URL}, or `url` in {get_file()}"
        )
    return Origin(address)


def get_cache(file: Path | None = None) -> TokenCache:
    """Return the sign-ins of the user, which are beside the user's file."""
    return TokenCache((file or get_file()).with_name(_TOKENS))


def _read_file(path: Path) -> dict[str, str]:
    content = read_private(path)
    if content is None:
        return {}
    try:
        return _check_members(path, tomllib.loads(content.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"{path} is not TOML: {wrong}") from None


def _check_members(path: Path, members: Mapping[str, Any]) -> dict[str, str]:
    wrong = sorted(set(members) - {"url", "key"})
    if wrong:
        raise SettingsError(f"{path} has `url` and `key`; it does not know {', '.join(wrong)}")
    texts = {name: value for name, value in members.items() if isinstance(value, str)}
    if len(texts) < len(members):
        raise SettingsError(f"{path}: `url` and `key` are texts")
    return texts


def _check_key(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key and key):
        raise SettingsError("the key has characters that no header can hold, such as a line break")
    return key
