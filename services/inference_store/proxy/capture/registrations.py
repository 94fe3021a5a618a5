"""Registrations of models, read from the api in the background and stored on disk.

Nothing waits for the api: the registrations read last apply, and after a start those in the file.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import orjson
import structlog

from inference_store.platform.settings import PREFIX, CaptureSettings
from inference_store.proxy.configuration import Rules
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.documents import is_event_stream
from inference_store.proxy.protocols.protocol import Call

# An exchange that was handed over, with its rules and its model's registration.


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    """A registration."""

    task_type: str | None = None
    batched: bool = False
    """True if the output mapping says so."""


NOT_REGISTERED: Final = RegisteredModel()
Registry: TypeAlias = Callable[[str], RegisteredModel | None]
"""Returns a registration by model id; None if the model is not registered, or not known yet."""


@dataclass(frozen=True, slots=True)
class Work:
    """One exchange to capture."""

    exchange: Exchange
    call: Call
    rules: Rules
    model: str
    """Its name, which the rules may map to another id; the upstream's if no path names the
    model."""
    registered: RegisteredModel = NOT_REGISTERED
    """The model's registration in the api."""
    dialect: str | None = None
    """The messages that answer the upstream's gRPC streams."""
    by_name: Sequence[Rules] | None = None
    """If only the body names the model: the rules of all models at the upstream."""


def remove_cut_bodies(work: Work) -> Work:
    """Return the exchange without bodies that were cut off at a cap: half a JSON document is
    useless. The beginning of a stream stays, and so does a body that broke off by itself."""
    exchange = work.exchange
    request = _remove_if_cut(exchange.request)
    response = exchange.response
    if work.call.kind == "infer" and not is_event_stream(exchange.response_headers):
        response = _remove_if_cut(response)
    if request is exchange.request and response is exchange.response:
        return work
    return replace(work, exchange=replace(exchange, request=request, response=response))


def _remove_if_cut(body: Body) -> Body:
    is_cut = body.gap == "over_cap" and bool(body.parts)
    return Body(size=body.size, whole=False) if is_cut else body


_PAGE: Final = 500
_MOST_MODELS: Final = 100_000
_MOST_PAGE_BYTES: Final = 32 << 20
_MOST_FILE_BYTES: Final = 128 << 20
_SECONDS: Final = 30.0
_log = structlog.get_logger()


class RegistryUnreadable(Exception):
    """The registrations cannot be read; `str()` of the error gives the reason."""


class Registrations:
    """The registrations of the api. `of` may be called by any thread."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._url = settings.proxy_registry_url.rstrip("/")
        self._key = settings.proxy_registry_key.get_secret_value()
        self._file = settings.proxy_registry_file
        self._seconds = settings.proxy_report_seconds
        self._models: Mapping[str, RegisteredModel] = {}

    def of(self, model_id: str) -> RegisteredModel | None:
        """Return a model's registration; None if it has none, or is not known yet."""
        return self._models.get(model_id)

    def open(self) -> None:
        """Read the file, if there is one. Blocks."""
        if self._url and self._file is not None:
            self._models = _read_file(self._file)

    async def keep_current(self) -> None:
        """Read the api at intervals; return at once if there is none."""
        while self._url:
            await self._refresh()
            await asyncio.sleep(self._seconds)

    async def _refresh(self) -> None:
        try:
            models = await self._fetch_models()
        except (RegistryUnreadable, aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            _log.warning("the registrations are not read", action="registry_away", error=why)
            return
        if models != self._models and self._file is not None:
            await asyncio.to_thread(_write_file, self._file, models)
        self._models = models

    async def _fetch_models(self) -> dict[str, RegisteredModel]:
        """Return every model that the key may read. Raises RegistryUnreadable, ClientError,
        TimeoutError."""
        models: dict[str, RegisteredModel] = {}
        cursor: str | None = None
        headers = {"Authorization": f"Bearer {self._key}"}
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while True:
                page = await _fetch_page(session, f"{self._url}/v1/models", cursor)
                models |= _read_models(page)
                cursor = page.get("next")
                if not cursor:
                    return models
                if len(models) > _MOST_MODELS:
                    raise RegistryUnreadable(f"the api has more than {_MOST_MODELS} models")


def _read_file(path: Path) -> dict[str, RegisteredModel]:
    try:
        with path.open("rb") as file:
            return _read_models(_parse_page(file.read(_MOST_FILE_BYTES), str(path)))
    except FileNotFoundError:
        return {}
    except (OSError, RegistryUnreadable) as error:
        _log.warning("the registry's file cannot be read", action="registry_file", error=str(error))
        return {}


def _write_file(path: Path, models: Mapping[str, RegisteredModel]) -> None:
    """Write the file under another name first, so that a kill never leaves it incomplete."""
    items = [
        {
            "model_id": model_id,
            "task_type": registered.task_type,
            "output_mapping": {"batched": registered.batched},
        }
        for model_id, registered in models.items()
    ]
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(orjson.dumps({"items": items}))
        temporary.replace(path)
    except OSError as error:
        _log.warning(
            "the registry's file cannot be written", action="registry_file", error=str(error)
        )


async def _fetch_page(
    session: aiohttp.ClientSession, url: str, cursor: str | None
) -> dict[str, Any]:
    query = {"limit": str(_PAGE)} | ({"cursor": cursor} if cursor else {})
    async with session.get(url, params=query, allow_redirects=False) as answer:
        if answer.status != 200:
            raise RegistryUnreadable(
                f"{url} answers {answer.status}: {PREFIX}PROXY_REGISTRY_KEY has to read models"
            )
        body = bytearray()
        async for chunk in answer.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > _MOST_PAGE_BYTES:
                raise RegistryUnreadable(f"{url} answers more than {_MOST_PAGE_BYTES} bytes")
    return _parse_page(bytes(body), url)


def _parse_page(raw: bytes, name: str) -> dict[str, Any]:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RegistryUnreadable(f"{name} holds no JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("items"), list):
        raise RegistryUnreadable(
            f"{name} holds no list of models: {PREFIX}PROXY_REGISTRY_URL is the api's address"
        )
    return document


def _read_models(page: Mapping[str, Any]) -> dict[str, RegisteredModel]:
    models: dict[str, RegisteredModel] = {}
    for item in page["items"]:
        if isinstance(item, dict) and isinstance(item.get("model_id"), str):
            task_type, mapping = item.get("task_type"), item.get("output_mapping")
            models[item["model_id"]] = RegisteredModel(
                task_type=task_type if isinstance(task_type, str) else None,
                batched=isinstance(mapping, dict) and mapping.get("batched") is True,
            )
    return models
