"""The store."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

import httpx

from inference_store_client import reading
from inference_store_client.decoding import decode
from inference_store_client.exporting import read_export
from inference_store_client.filters import Filter
from inference_store_client.json_text import Json
from inference_store_client.question import Question, QuestionOptions
from inference_store_client.requests import make_any_request, make_path, make_request
from inference_store_client.retries import DEFAULT_RETRIES, Retries
from inference_store_client.settings import find_settings
from inference_store_client.values.caller import Caller
from inference_store_client.values.models import Registration, RegistrationPage

from .export import AsyncExport
from .inferences import AsyncInferences
from .model import AsyncModel
from .transport import AsyncTransport

T = TypeVar("T")


class AsyncStore:
    """An Inference Store.

    `url` and `key` default to INFERENCE_STORE_URL and INFERENCE_STORE_KEY, and then to
    `~/.config/inference-store/config.toml`. `http_client` is used as it is, and not closed.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retries: Retries = DEFAULT_RETRIES,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        self._transport = AsyncTransport(find_settings(url, key, retries=retries), http_client)

    def model(self, model_id: str) -> AsyncModel:
        """Return a model; nothing is asked yet."""
        return AsyncModel(self._transport, model_id)

    def models(self, *, project_id: str | None = None) -> AsyncIterator[Registration]:
        """Yield the models that the caller may read; of a project, or all."""
        params = {} if project_id is None else {"project_id": project_id}
        steps = reading.read_list(
            make_path("models"), RegistrationPage, self._transport.settings, params
        )
        return self._transport.iterate(steps)

    def inferences(
        self,
        filter: Filter | None = None,
        *,
        model_ids: Sequence[str] | None = None,
        project_id: str | None = None,
        **options: Unpack[QuestionOptions],
    ) -> AsyncInferences:
        """Return the inferences of several models, of a project, or of all that may be read."""
        question = Question(path=make_path("inferences"), filter=filter, **options)
        return AsyncInferences(self._transport, question.of_models(model_ids, project_id))

    async def me(self) -> Caller:
        """Read who the caller is, and what they may do."""
        request = make_request("GET", make_path("me"))
        return await self._transport.run(reading.fetch(Caller, request, self._transport.settings))

    async def export(self, id: UUID | str) -> AsyncExport:
        """Read an export that was requested before."""
        request = make_request("GET", make_path("exports", str(id)))
        build = partial(decode, AsyncExport, _transport=self._transport)
        return await self._transport.run(read_export(request, build, self._transport.settings))

    @overload
    async def request(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Json = None
    ) -> Json: ...
    @overload
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Json = None,
        into: type[T],
    ) -> T: ...
    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Json = None,
        into: type[T] | None = None,
    ) -> T | Json:
        """Ask any route: `request("GET", "/v1/holds")`. Numbers are exact, decimals are `Decimal`.

        `into`: a dataclass of `values` for the answer. Only what reads is sent again if it fails.
        """
        request = make_any_request(method, path, params=params, body=body)
        if into is None:
            return await self._transport.run(reading.request_any(request, self._transport.settings))
        return await self._transport.run(reading.fetch(into, request, self._transport.settings))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.settings.origin.url!r})"
