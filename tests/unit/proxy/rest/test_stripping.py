"""Requests are held for stripping within one budget, and pass unchanged if it is spent."""

import asyncio
import gzip
import threading
from typing import Any

import pytest

from inference_store.platform.metrics import SHOWN
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.proxy.protocols.protocol import MOST_STRIPPED
from inference_store.proxy.rest_messages import Stripping

WITH = b'{"parameters": {"metadata": "[]"}, "inputs": []}'


def read_count(why: str) -> float:
    name = "inference_store_proxy_unstripped_calls_total"
    return SHOWN["proxy"].get_sample_value(name, {"why": why}) or 0


def test_a_large_request_is_not_held() -> None:
    stripping, before = Stripping(MOST_STRIPPED * 2), read_count("large")
    held = stripping.hold()
    assert held.add(b"x" * MOST_STRIPPED)
    assert not held.add(b"x")
    assert read_count("large") == before + 1


async def test_few_bodies_are_parsed_at_once() -> None:
    stripping, at_once, most = Stripping(1000), 0, 0
    lock = threading.Lock()
    here = threading.Barrier(2, timeout=120)

    def strip(_: bytes, __: Headers) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        here.wait()
        with lock:
            at_once -= 1

    calls: list[Any] = [stripping.hold().strip_metadata(strip, []) for _ in range(8)]
    assert await asyncio.gather(*calls) == [(b"", None)] * 8
    assert most == 2


@pytest.mark.parametrize("name", ["v2", "chariot-v2"])
def test_leaves_bodies_that_are_too_large_when_decoded(name: str) -> None:
    strip = PROTOCOLS[name].strip
    assert strip is not None
    headers = [("content-encoding", "gzip"), ("content-type", "application/json")]
    for size, is_stripped in ((1000, True), (MOST_STRIPPED, False)):
        packed = gzip.compress(WITH[:-1] + b" " * size + b"}")
        assert (strip(packed, headers) is not None) is is_stripped
