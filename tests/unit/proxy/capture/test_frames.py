"""Exchanges as one process tells them to the other: the same comes out, whatever strangers sent."""

from datetime import UTC, datetime
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.process import Handshake, Reader, Writer, read_handshake
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.configuration import NamedRules, Redaction, Rules, Sampling
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, Call
from tests.exchanges import exchange
from tests.settings import make_settings

RULES = Rules(
    model_id="m",
    sampling=Sampling(share=0.5, key="camera"),
    redactions=(Redaction(what="path", name="a.b", how="hash"),),
    metadata_headers=("x-camera",),
    by_name=(NamedRules("yolo*", "2", Rules(task_type="object_detection")),),
    if_unnamed=(Redaction(what="input"),),
)
LATIN = st.text(st.characters(max_codepoint=255))
TIMES = st.datetimes(timezones=st.just(UTC))
BODIES = st.builds(
    lambda parts, size, whole: Body(parts=parts, size=size, whole=whole),
    st.lists(st.binary(max_size=50)),
    st.integers(0, 2**40),
    st.booleans(),
)
EXCHANGES = st.builds(
    Exchange,
    transport=st.sampled_from(["rest", "grpc"]),
    method=LATIN,
    path=LATIN,
    query=LATIN,
    position=st.integers(0, 2**40),
    is_matched_in_doubt=st.booleans(),
    request_headers=st.lists(st.tuples(LATIN, LATIN)),
    request=BODIES,
    response_headers=st.lists(st.tuples(LATIN, LATIN)),
    response=BODIES,
    response_trailers=st.lists(st.tuples(LATIN, LATIN)),
    http_status=st.none() | st.integers(100, 999),
    grpc_code=st.none() | st.integers(0, 16),
    error=st.none() | st.text(),
    received_at=TIMES,
    forwarded_at=st.none() | TIMES,
    responded_at=st.none() | TIMES,
    first_part_at=st.none() | TIMES,
    finished_at=st.none() | TIMES,
)


def make_reader(raw: bytes) -> Reader:
    return Reader(BytesIO(raw))


def make_work(sample: Exchange, rules: Rules = RULES, model: str = "m") -> Work:
    return Work(sample, Call(PROTOCOLS["v2"], "infer", "model", None), rules, model)


@given(st.lists(st.tuples(EXCHANGES, st.sampled_from([RULES, Rules()]), st.text()), max_size=5))
def test_frames_are_read_back_as_written(sent: list[tuple[Exchange, Rules, str]]) -> None:
    writer = Writer()
    works = [make_work(*message) for message in sent]
    frames = [b"".join(writer.exchange(expected, 7)) for expected in works]
    result = make_reader(b"".join(frames))
    for expected in works:
        came = result.exchange()
        assert came is not None
        assert (came.work(PROTOCOLS), came.reserved) == (expected, 7)
    assert result.exchange() is None


def test_sends_rules_once_to_each_process() -> None:
    writer = Writer()
    first, second = (b"".join(writer.exchange(make_work(exchange()), 1)) for _ in range(2))
    assert len(first) > len(second)
    for raw in (second, first):  # rules sent before are sent again in a frame that waited
        came = make_reader(b"".join(writer.rules) + raw).exchange()
        assert came is not None
        assert came.rules == RULES


def test_an_exchange_that_was_cut_off_did_not_come() -> None:
    for last in ((), (b"",), (b"", b"x", b"")):
        sample = exchange(b"asked", b"told")
        for body in (sample.request, sample.response):
            body.parts = (*body.parts, *last)  # a stream's messages may be empty
        raw = b"".join(Writer().exchange(make_work(sample), 1))
        for end in range(len(raw)):
            assert make_reader(raw[:end]).exchange() is None, last
        assert make_reader(raw).exchange() is not None, last


def test_a_process_receives_the_settings_with_their_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy_settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        s3_access_key="a key",
        s3_secret_key="a secret",
        proxy_spool="all",
        proxy_spool_directory="/spool",
    )
    handshake = Handshake(
        settings=proxy_settings, producer="p", booted_at=datetime.now(UTC), handed=3
    )
    raw = handshake.frame()
    monkeypatch.setenv("INFERENCE_STORE_PROXY_SPOOL", "off")
    assert read_handshake(make_reader(raw)) == handshake
    with pytest.raises(EOFError):
        read_handshake(make_reader(raw[:10]))
