"""A client that disconnects before its body is complete causes no error."""

import asyncio
import logging

import pytest

from inference_store.platform.metrics import SHOWN
from tests.polling import until

from .app_server import serve_app
from .conftest import MakeApp

_PATH = "/v1/models/model/inferences/query"
_ROUTE = "/v1/models/{model_id}/inferences/query"


def _count_requests(status: str) -> float:
    labels = {"method": "POST", "route": _ROUTE, "status": status}
    return SHOWN["api"].get_sample_value("inference_store_api_requests_total", labels) or 0


async def test_disconnect_during_the_body_is_no_failure(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cancelled, failed = _count_requests("499"), _count_requests("500")
    async with serve_app(make_app()) as client:
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        head = f"POST {_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"filter":')
        await writer.drain()
        writer.close()

        async def count_ended() -> float:
            return _count_requests("499") + _count_requests("500")

        await until(count_ended, lambda count: count > cancelled + failed)
    assert (_count_requests("499"), _count_requests("500")) == (cancelled + 1, failed)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
