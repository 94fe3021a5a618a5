"""Registrations of models, read from the api in the background and kept on disk.

Nothing waits for the api: what was read last is what is known, after a start what the file has.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import structlog

from inference_store.platform.settings import PREFIX, CaptureSettings

from .registered import Registered

_PAGE: Final = 500
_MOST_MODELS: Final = 100_000
_MOST_PAGE_BYTES: Final = 32 << 20
_MOST_FILE_BYTES: Final = 128 << 20
_SECONDS: Final = 30.0
_log = structlog.get_logger()


class NotRead(Exception):
    """The registrations cannot be read; `str()` of it says why."""


class Registrations:
    """What the api has registered. `of` may be asked by any thread."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._url = settings.proxy_registry_url.rstrip("/")
        self._key = settings.proxy_registry_key.get_secret_value()
        self._file = settings.proxy_registry_file
        self._seconds = settings.proxy_registry_seconds
        self._known: Mapping[str, Registered] = {}

    def of(self, model_id: str) -> Registered | None:
        """A model's registration; None: it has none, or is not known yet."""
        return self._known.get(model_id)

    def open(self) -> None:
        """Read the file, where there is one. Blocks."""
        if self._url and self._file is not None:
            self._known = _models_of_file(self._file)

    async def keep_current(self) -> None:
        """Read the api again and again; ends at once where there is none."""
        while self._url:
            await self._refresh()
            await asyncio.sleep(self._seconds)

    async def _refresh(self) -> None:
        try:
            models = await self._fetched()
        except (NotRead, aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            _log.warning("the registrations are not read", action="registry_away", error=why)
            return
        if models != self._known and self._file is not None:
            await asyncio.to_thread(_write_file, self._file, models)
        self._known = models

    async def _fetched(self) -> dict[str, Registered]:
        """Every model that the key may read. Raises NotRead, ClientError, TimeoutError."""
        models: dict[str, Registered] = {}
        cursor: str | None = None
        headers = {"Authorization": f"Bearer {self._key}"}
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while True:
                page = await _page(session, f"{self._url}/v1/models", cursor)
                models |= _registered(page)
                cursor = page.get("next")
                if not cursor:
                    return models
                if len(models) > _MOST_MODELS:
                    raise NotRead(f"the api has more than {_MOST_MODELS} models")


def _models_of_file(path: Path) -> dict[str, Registered]:
    """What the file has; nothing where it cannot be read, which the log says."""
    try:
        with path.open("rb") as file:
            return _registered(_object(file.read(_MOST_FILE_BYTES), str(path)))
    except FileNotFoundError:
        return {}
    except (OSError, NotRead) as error:
        _log.warning("the registry's file cannot be read", action="registry_file", error=str(error))
        return {}


def _write_file(path: Path, models: Mapping[str, Registered]) -> None:
    """Beside it first: a file that a kill cut off never has the name."""
    items = [
        {
            "model_id": model_id,
            "task_type": registered.task_type,
            "output_mapping": {"batched": registered.batched},
        }
        for model_id, registered in models.items()
    ]
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(orjson.dumps({"items": items}))
        beside.replace(path)
    except OSError as error:
        _log.warning(
            "the registry's file cannot be written", action="registry_file", error=str(error)
        )


async def _page(session: aiohttp.ClientSession, url: str, cursor: str | None) -> dict[str, Any]:
    query = {"limit": str(_PAGE)} | ({"cursor": cursor} if cursor else {})
    async with session.get(url, params=query, allow_redirects=False) as answer:
        if answer.status != 200:
            raise NotRead(
                f"{url} answers {answer.status}: {PREFIX}PROXY_REGISTRY_KEY has to read models"
            )
        body = bytearray()
        async for chunk in answer.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > _MOST_PAGE_BYTES:
                raise NotRead(f"{url} answers more than {_MOST_PAGE_BYTES} bytes")
    return _object(bytes(body), url)


def _object(raw: bytes, name: str) -> dict[str, Any]:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise NotRead(f"{name} holds no JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise NotRead(
            f"{name} holds no list of models: {PREFIX}PROXY_REGISTRY_URL is the api's address"
        )
    return document


def _registered(page: Mapping[str, Any]) -> dict[str, Registered]:
    return {
        each["model_id"]: _registration(each)
        for each in page["items"]
        if isinstance(each, dict) and isinstance(each.get("model_id"), str)
    }


def _registration(item: Mapping[str, Any]) -> Registered:
    task_type, mapping = item.get("task_type"), item.get("output_mapping")
    return Registered(
        task_type=task_type if isinstance(task_type, str) else None,
        batched=isinstance(mapping, dict) and mapping.get("batched") is True,
    )
