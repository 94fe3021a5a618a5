"""Performs the core's commands, and blocks meanwhile."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypeVar

import httpx

from inference_store_client.commands import (
    Close,
    Command,
    Deliver,
    Open,
    Outcome,
    Read,
    Renew,
    Steps,
    Wait,
)
from inference_store_client.http_clients import open_http
from inference_store_client.messages import (
    TIMEOUT,
    build_message,
    make_failure,
    read_head,
    renew,
)
from inference_store_client.requests import Request
from inference_store_client.settings import ClientSettings

T = TypeVar("T")


class Transport:
    """Sends requests with httpx. A client that is given is used as it is, and not closed."""

    def __init__(self, settings: ClientSettings, http: httpx.Client | None = None) -> None:
        self.settings = settings
        self._http = http or open_http(lambda: httpx.Client(timeout=TIMEOUT))
        self._is_owned = http is None

    def run(self, steps: Steps[T]) -> T:
        """Perform the commands, and return what they lead to."""
        outcome: Outcome = None
        with closing(_Conversation(self._http, self.settings)) as conversation:
            while True:
                try:
                    command = steps.send(outcome)
                except StopIteration as end:
                    result: T = end.value
                    return result
                outcome = conversation.perform(command)

    def iterate(self, steps: Steps[None]) -> Iterator[Any]:
        """Perform the commands, and yield what they deliver."""
        outcome: Outcome = None
        with closing(steps), closing(_Conversation(self._http, self.settings)) as conversation:
            while True:
                try:
                    command = steps.send(outcome)
                except StopIteration:
                    return
                outcome = None
                if isinstance(command, Deliver):
                    yield from command.items
                else:
                    outcome = conversation.perform(command)

    def close(self) -> None:
        """Close the connections."""
        if self._is_owned:
            self._http.close()


class _Conversation:
    """The responses of one run of the core, one after the other."""

    def __init__(self, http: httpx.Client, settings: ClientSettings) -> None:
        self._http, self._settings = http, settings
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def perform(self, command: Command) -> Outcome:
        match command:
            case Open(request):
                return self._open(request)
            case Read():
                return self._read()
            case Renew():
                return renew(self._settings)
            case Wait(seconds):
                time.sleep(seconds)
            case Close():
                self.close()
        return None

    def _open(self, request: Request) -> Outcome:
        message = build_message(self._http, self._settings, request)
        is_home = self._settings.origin.has(str(message.url))
        auth = httpx.USE_CLIENT_DEFAULT if is_home else None
        try:
            self._response = self._http.send(
                message, stream=True, follow_redirects=False, auth=auth
            )
        except httpx.RequestError as error:
            return make_failure(error, self._settings)
        self._pieces = self._response.iter_bytes()
        return read_head(self._response)

    def _read(self) -> Outcome:
        try:
            return next(self._pieces, b"")
        except httpx.RequestError as error:
            return make_failure(error, self._settings)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
