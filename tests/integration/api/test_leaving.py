"""A client that leaves before its body is whole is nobody's fault here."""

import asyncio
import logging

import pytest

from inference_store.platform.metrics import SHOWN
from tests.polling import until

from .conftest import MakeApp
from .served import served

_PATH = "/v1/models/model/inferences/query"
_ROUTE = "/v1/models/{model_id}/inferences/query"


def _requests(status: str) -> float:
    labels = {"method": "POST", "route": _ROUTE, "status": status}
    return SHOWN["api"].get_sample_value("inference_store_api_requests_total", labels) or 0


async def test_leaving_amid_a_body_is_no_failure(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    left, failed = _requests("499"), _requests("500")
    async with served(make_app()) as client:
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        head = f"POST {_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"filter":')
        await writer.drain()
        writer.close()

        async def counted() -> float:
            return _requests("499") + _requests("500")

        await until(counted, lambda count: count > left + failed)
    assert (_requests("499"), _requests("500")) == (left + 1, failed)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
