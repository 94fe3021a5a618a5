"""Turns: how many run at once, who is next, who is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from inference_store.api.dependencies import AdmissionControl
from inference_store.inference.errors import TooManyQueries
from inference_store.platform.metrics import SHOWN


def _read(metric: str) -> float:
    name = f"inference_store_api_turns_{metric}"
    return SHOWN["api"].get_sample_value(name, {"kind": "query"}) or 0


async def _let_wait(count: int) -> None:
    """Let the tasks begin, of which so many wait."""
    await asyncio.sleep(0)
    assert _read("waiting") == count


async def _ask(admission: AdmissionControl, caller: str) -> None:
    async with admission.admit(caller):
        await asyncio.sleep(0)


@asynccontextmanager
async def _hold_turns(admission: AdmissionControl, *callers: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for caller in callers:
            await stack.enter_async_context(admission.admit(caller))
        yield


async def test_one_caller_cannot_take_more_than_its_share() -> None:
    admission = AdmissionControl("query", 3, 2, wait_seconds=0)
    async with _hold_turns(admission, "a", "a"):
        with pytest.raises(TooManyQueries, match="QUERIES_AT_ONCE") as refused:
            await _ask(admission, "a")
        assert refused.value.retry_after_seconds == 1
        async with admission.admit("b"):
            with pytest.raises(TooManyQueries, match=r"\(INFERENCE_STORE_QUERIES_AT_ONCE\)"):
                await _ask(admission, "c")
    async with _hold_turns(admission, "a", "a", "c"):
        pass


async def test_admits_the_caller_with_fewest_running_then_the_first_to_arrive() -> None:
    admission = AdmissionControl("query", 2, 2, wait_seconds=300)
    order: list[str] = []

    async def ask(name: str) -> None:
        async with admission.admit(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    async with _hold_turns(admission, "a", "a"):
        requests = [asyncio.create_task(ask(name)) for name in ("a1", "a2", "b1", "b2")]
        await _let_wait(4)
        assert order == []
    await asyncio.gather(*requests)
    assert order[:2] == ["b1", "a1"]
    assert sorted(order) == ["a1", "a2", "b1", "b2"]


async def test_a_caller_that_leaves_while_waiting_takes_no_turn() -> None:
    admission, before = AdmissionControl("query", 1, 1, wait_seconds=300), _read("taken")
    async with admission.admit("b"):
        leaving, staying = (asyncio.create_task(_ask(admission, "a")) for _ in range(2))
        await _let_wait(2)
        leaving.cancel()
    await asyncio.wait([leaving])
    await asyncio.wait_for(staying, 300)
    assert leaving.cancelled()
    assert _read("taken") == before
    async with admission.admit("c", wait_seconds=0):
        assert _read("taken") == before + 1


async def test_a_crowd_does_not_wait() -> None:
    admission = AdmissionControl("query", 1, 1, wait_seconds=30)
    async with admission.admit("a"):
        waiting = [asyncio.create_task(_ask(admission, "a")) for _ in range(32)]
        await _let_wait(32)
        with pytest.raises(TooManyQueries) as refused:
            await _ask(admission, "a")
        assert refused.value.retry_after_seconds == 30
        for request in waiting:
            request.cancel()
    await asyncio.wait(waiting)
