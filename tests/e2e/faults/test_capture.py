"""The model server and the callers go in the middle of calls: callers notice nothing that is not
theirs, each call is stored once, and the books close."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.faults.capture_line import MODEL, QUICK, Calls, send_half_a_call, start_line
from tests.polling import until
from tests.servers.fixtures import MakeEnvironment

pytestmark = pytest.mark.real_kafka
PREDICT = f"POST /v1/models/{MODEL}:predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
BODY = json.dumps({"instances": [[1]]}).encode()


@pytest.fixture
def quick_environment(
    service_environment: MakeEnvironment, topic: Callable[..., str]
) -> dict[str, str]:
    return service_environment(KAFKA_TOPIC=topic(2), KAFKA_REPORTS_TOPIC=topic(), **QUICK)


async def test_the_model_server_ends_in_the_middle_of_calls(
    quick_environment: dict[str, str], tmp_path: Path
) -> None:
    async with start_line(quick_environment, tmp_path) as line:
        calls, waiting = Calls(line.proxy.url), Calls(line.proxy.url, _number=1000)
        await calls.make(20)
        task = asyncio.create_task(waiting.make(4, hang="1"))
        await until(line.count_calls, lambda count: count == 4)
        await line.model_server.stop()
        await task
        # the answer in place of a broken connection
        assert [error[:4] for error in waiting.failed.values()] == ["502:"] * 4, waiting.failed
        await waiting.make(1)
        assert "502:" in list(waiting.failed.values())[-1]
        await line.model_server.start()
        await calls.make(20)
        calls.failed |= waiting.failed
        await line.check_all(calls, failed=5)
        failed = [item for item in await line.items() if item["inference_id"] in waiting.failed]
        # the status is the model server's, which gave none
        assert {(item["ok"], item["http_status"]) for item in failed} == {(False, None)}
        assert all("cannot be reached" in item["error"] for item in failed), failed


async def test_callers_go_in_the_middle_of_calls(
    quick_environment: dict[str, str], tmp_path: Path
) -> None:
    async with start_line(quick_environment, tmp_path) as line:
        calls, names = Calls(line.proxy.url), ["whole-0", "whole-1", "whole-2", "torn"]
        whole = f"{PREDICT}\r\nhang: 1\r\nContent-Length: {len(BODY)}\r\nX-Request-ID: "
        torn = f"{PREDICT}\r\nContent-Length: 1000\r\nX-Request-ID: "
        gone = [
            await send_half_a_call(line.proxy, (torn if name == "torn" else whole) + name, BODY)
            for name in names
        ]
        await calls.make(20)
        await until(line.count_calls, lambda count: count == len(gone))
        for writer in gone:
            writer.close()
        await calls.make(20)
        calls.failed = dict.fromkeys(names, "gone")
        await line.check_all(calls, failed=len(names))
        items = {item["inference_id"]: item for item in await line.items()}
        for name in names:
            assert items[name]["ok"] is False
            assert items[name]["http_status"] is None
            assert "caller" in items[name]["error"], items[name]
