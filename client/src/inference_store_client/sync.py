"""The store, asked by ordinary functions; `asynchronous` has the same, for an event loop."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import httpx

from inference_store_client import commands, methods
from inference_store_client.http_clients import open_http
from inference_store_client.messages import TIMEOUT, build_message, make_failure, read_head, renew
from inference_store_client.requests import Request
from inference_store_client.retries import DEFAULT_RETRIES, Retries
from inference_store_client.settings import ClientSettings, find_settings

T = TypeVar("T")


class Transport:
    """Sends requests with httpx. A client that is given is used as it is, and not closed."""

    def __init__(self, settings: ClientSettings, http: httpx.Client | None = None) -> None:
        self.settings = settings
        self.http = http or open_http(lambda: httpx.Client(timeout=TIMEOUT))
        self._is_owned = http is None
        self.has_answered = False

    def run(self, steps: commands.Steps[T]) -> T:
        """Perform the commands, and return what they lead to."""
        [result] = self.iterate(commands.deliver_result(steps))
        return result

    def iterate(self, steps: commands.Deliveries[T]) -> Iterator[T]:
        """Perform the commands, and yield what they deliver."""
        outcome: commands.Outcome = None
        with closing(steps), closing(_Conversation(self)) as conversation:
            while True:
                try:
                    command = steps.send(outcome)
                except StopIteration:
                    return
                outcome = None
                if isinstance(command, commands.Deliver):
                    yield from command.items
                else:
                    outcome = conversation.perform(command)

    def close(self) -> None:
        """Close the connections."""
        if self._is_owned:
            self.http.close()


class _Conversation:
    """The responses of one run of the core, one after the other, and the jobs beside it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._threads: ThreadPoolExecutor | None = None

    def perform(self, command: commands.Action) -> commands.Outcome:  # noqa: PLR0911
        match command:
            case commands.Open(request):
                return self._open(request)
            case commands.Read():
                return self._read()
            case commands.Settings():
                return self._transport.settings
            case commands.Renew():
                return renew(self._transport.settings)
            case commands.Wait(seconds):
                time.sleep(seconds)
            case commands.Call(function):
                return function()
            case commands.Begin(steps):
                self._threads = self._threads or ThreadPoolExecutor(commands.MOST_JOBS)
                return self._threads.submit(self._transport.run, steps)
            case commands.Finish(job):
                return job.result()
            case commands.Close():
                self._close_response()
        return None

    def _open(self, request: Request) -> commands.Outcome:
        settings = self._transport.settings
        message = build_message(self._transport.http, settings, request)
        auth = httpx.USE_CLIENT_DEFAULT if settings.origin.has(str(message.url)) else None
        try:
            self._response = self._transport.http.send(
                message, stream=True, follow_redirects=False, auth=auth
            )
        except httpx.RequestError as error:
            return make_failure(error, settings, is_known=self._transport.has_answered)
        self._transport.has_answered = True
        self._pieces = self._response.iter_bytes()
        return read_head(self._response)

    def _read(self) -> commands.Outcome:
        try:
            return next(self._pieces, b"")
        except httpx.RequestError as error:
            return make_failure(error, self._transport.settings)

    def _close_response(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def close(self) -> None:
        self._close_response()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(methods.ExportMethods["Export"], methods.Blocking):
    """An export as it was when it was read; each method asks the store again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference(methods.InferenceMethods, methods.Blocking):
    """One datum and what the model answered, and what can be done with them."""


class Groups(methods.GroupsMethods, methods.Blocking):
    """The inferences that match, by groups."""


class Inferences(methods.InferencesMethods[Inference, Groups, Export], methods.Blocking):
    """The inferences that match. Building one sends nothing; each method sends a new request."""

    _inference, _groups, _export = Inference, Groups, Export

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Ask nothing: a question is always true, as `AsyncInferences` is."""
        return True

    def _repr_html_(self) -> str:
        return self.html()

    def __iter__(self) -> Iterator[Inference]:
        return self.stream()


class Model(methods.ModelMethods[Inference, Inferences], methods.Blocking):
    """One model of the store. Making one asks nothing."""

    _inference, _inferences = Inference, Inferences


class Store(methods.StoreMethods[Model, Inferences, Export], methods.Blocking):
    """An Inference Store.

    `url` and `key` default to INFERENCE_STORE_URL and INFERENCE_STORE_KEY, and then to
    `~/.config/inference-store/config.toml`. Without a key, the tokens of `istore login` are sent.
    `http_client` is used as it is, and not closed.
    """

    _model, _inferences, _export = Model, Inferences, Export
    _transport: Transport

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retries: Retries = DEFAULT_RETRIES,
        http_client: httpx.Client | None = None,
    ) -> None:
        self._transport = Transport(find_settings(url, key, retries=retries), http_client)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
