"""The container behind the bridge: its Status, asked once, and its Run."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc import ChannelConnectivity, StatusCode

from inference_store.grpc_messages import message
from inference_store.proxy.protocols.v2.items import Run

from .about import About, about_of

_STATUSES: Final = {
    StatusCode.DEADLINE_EXCEEDED: 504,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.RESOURCE_EXHAUSTED: 503,
    StatusCode.INVALID_ARGUMENT: 422,
    StatusCode.UNIMPLEMENTED: 501,
}
_LEAST_FAILED: Final = 400


class ContainerFailed(Exception):
    """The container cannot or does not want to; `str()` of it is its own text.

    `status`: as HTTP has it: 422 what was sent, 500 the model, 503 it is away, 504 too late.
    """

    def __init__(self, status: int, sentence: str, *, run: Run | None = None) -> None:
        """`run`: what the container said itself; None: it said nothing."""
        super().__init__(sentence)
        self.status = status
        self.run = run


class Container:
    """An OMI container. Bounds: `status_seconds` for its model to start, `run_seconds` for a Run
    where the container does not say how long one may take."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        status_seconds: float = 600.0,
        run_seconds: float = 600.0,
    ) -> None:
        self._channel = channel
        self._status_seconds = status_seconds
        self._run_seconds = run_seconds
        self._told: asyncio.Task[About] | None = None

    async def is_there(self, seconds: float = 1.0) -> bool:
        """Whether there is a connection. Status is no probe: it starts the model."""
        state = self._channel.get_state(try_to_connect=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while state is not ChannelConnectivity.READY:
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        return state is ChannelConnectivity.READY

    async def about(self) -> About:
        """What its Status says: asked once, until that failed or the container was away.

        Raises ContainerFailed.
        """
        if self._told is None or _failed(self._told):
            self._told = asyncio.create_task(self._ask())
            self._told.add_done_callback(_failed)  # also where nobody waits any more
        return await asyncio.shield(self._told)  # a caller that leaves stops no one else's

    async def _ask(self) -> About:
        status = await self._call("Status", message("StatusRequest")(), self._status_seconds)
        about = about_of(status)
        _expect_good(status, about)
        return about

    async def run(
        self, items: Sequence[Mapping[str, bytes]], *, explain: bool, detect_drift: bool
    ) -> tuple[list[Any], Run]:
        """An OutputItem for each item, in Runs of the size that the container takes.

        Raises ContainerFailed: what one Run refuses fails the call.
        """
        about = await self.about()
        found: list[Any] = []
        codes: list[int] = []
        for first in range(0, len(items), about.batch_size):
            batch = items[first : first + about.batch_size]
            inputs = [message("InputItem")(input=item) for item in batch]
            request = message("RunRequest")(
                inputs=inputs, explain=explain, detect_drift=detect_drift
            )
            answer = await self._call("Run", request, about.run_seconds or self._run_seconds)
            found.extend(_outputs(answer, len(batch), about))
            codes.append(answer.status_code)
        return found, Run(max(codes, default=0), about.version or None)

    async def _call(self, name: str, request: Any, seconds: float) -> Any:
        ask: Any = self._channel.unary_unary(
            f"/ModzyModel/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=message(f"{name}Response").FromString,
        )
        try:
            return await ask(request, timeout=seconds)
        except grpc.aio.AioRpcError as exc:
            if exc.code() is StatusCode.UNAVAILABLE and name != "Status":
                self._told = None  # a container that comes back has to start its model again
            raise ContainerFailed(
                _STATUSES.get(exc.code(), 500),
                f"{name} of the container: {exc.details() or exc.code().name}",
            ) from None

    async def close(self) -> None:
        """Stop asking; the channel is its owner's to close."""
        if self._told is not None:
            self._told.cancel()
            await asyncio.gather(self._told, return_exceptions=True)


def _failed(told: "asyncio.Task[About]") -> bool:
    return told.done() and (told.cancelled() or told.exception() is not None)


def _outputs(answer: Any, count: int, about: About) -> Sequence[Any]:
    """An output for each item; also of a Run that refuses all of its items, each for itself."""
    outputs: Sequence[Any] = answer.outputs
    if len(outputs) == count and not any(each.success for each in outputs):
        return outputs
    _expect_good(answer, about)
    if len(outputs) == count:
        return outputs
    sentence = f"the container answered {len(outputs)} items to {count}"
    raise ContainerFailed(500, sentence, run=Run(answer.status_code, about.version or None))


def _expect_good(answer: Any, about: About) -> None:
    if answer.status_code >= _LEAST_FAILED:
        sentence = answer.message or answer.status or f"status_code {answer.status_code}"
        run = Run(answer.status_code, about.version or None)
        raise ContainerFailed(answer.status_code, sentence, run=run)
