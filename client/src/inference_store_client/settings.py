"""Where the store is, and with which key: an argument, else the environment, else a file."""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .errors import SettingsError
from .origin import Origin
from .retries import DEFAULT_RETRIES, Retries

URL, KEY = "INFERENCE_STORE_URL", "INFERENCE_STORE_KEY"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The address of a store, the key or token to send to it, and how often a read is sent."""

    origin: Origin
    key: str | None = field(default=None, repr=False)
    retries: Retries = DEFAULT_RETRIES


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
    address = url or saved.get("url")
    if not address:
        raise SettingsError(f"no address: Store('https://…'), {URL}, or `url` in {get_file()}")
    origin = Origin(address)
    if key is None and "url" in saved and Origin(saved["url"]) == origin:
        key = saved.get("key")
    return ClientSettings(origin, _check_key(key), retries)


def _read_file(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if os.name == "posix" and mode & _OTHERS:
                raise SettingsError(f"{path} may be read by others: chmod 600 {path}")
            return _check_members(path, tomllib.load(file))
    except FileNotFoundError:
        return {}
    except OSError as wrong:
        raise SettingsError(f"{path} cannot be read: {wrong.strerror}") from wrong
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
        raise SettingsError("the key has characters that no header can hold")
    return key
