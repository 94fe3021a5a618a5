"""The record of a caller that is gone."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from inference_store.proxy.grpc.call_end import Context, fail, record_cut_off
from inference_store.proxy.grpc.captured_call import CapturedCall


class Caller:
    """A call's context that knows only how long its deadline is away, in seconds."""

    def __init__(self, remaining: float | None) -> None:
        self._remaining = remaining

    def time_remaining(self) -> float | None:
        return self._remaining


class Ends:
    """Takes how a call ended."""

    def __init__(self) -> None:
        self.ended_with: tuple[Any, ...] | None = None

    def record_end(self, *ended_with: Any) -> None:
        self.ended_with = ended_with


def test_a_caller_is_gone_by_its_deadline_or_of_its_own() -> None:
    for remaining, ended_with in (
        (0.0, (4, "the caller's deadline passed")),
        (-0.1, (4, "the caller's deadline passed")),
        (0.1, (1, "the caller was gone before the answer's end")),
        (None, (1, "the caller was gone before the answer's end")),
    ):
        ends = Ends()
        record_cut_off(cast(Context, Caller(remaining)), cast(CapturedCall, ends))
        assert ends.ended_with == ended_with, remaining


class Failed:
    """A failed call's context, whose status is sent with some end."""

    def __init__(self, end: Exception) -> None:
        self._end = end

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED

    async def abort(self, _: grpc.StatusCode) -> None:
        raise self._end


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (grpc.aio.AbortError(), grpc.aio.AbortError),
        (grpc.aio.InternalError("the batch failed"), asyncio.CancelledError),
    ],
)
async def test_a_status_that_cannot_be_sent_is_a_cancelled_call(
    end: Exception, raised: type[BaseException]
) -> None:
    with pytest.raises(raised):
        await fail(cast(Context, Failed(end)))
