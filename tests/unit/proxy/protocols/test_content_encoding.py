"""Content codings, undone under a bound and done again; and server-sent events."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.protocols.documents import (
    NotDecoded,
    decode,
    encode,
    events,
    is_event_stream,
    list_codings,
)

GZIP = [("content-encoding", "gzip")]


@given(
    content=st.binary(),
    names=st.lists(st.sampled_from(["gzip", "deflate", "identity", "X-Gzip"]), max_size=4),
)
def test_decodes_what_was_encoded(content: bytes, names: list[str]) -> None:
    headers = [("content-encoding", " , ".join(names)), ("content-encoding", "")]
    assert decode(encode(content, headers), headers) == content
    assert len(list_codings(headers)) == len(names) - names.count("identity")


def test_the_bound_is_kept() -> None:
    bomb = gzip.compress(b"\0" * 5000)
    assert len(decode(bomb, GZIP, 5000)) == 5000
    with pytest.raises(NotDecoded, match="larger than 4999 bytes"):
        decode(bomb, GZIP, 4999)
    with pytest.raises(NotDecoded, match="larger than 7000 bytes"):
        decode(bomb * 2, GZIP, 7000)


def test_several_members_are_one_body() -> None:
    assert decode(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", GZIP) == b"ab"


@given(content=st.binary(), name=st.sampled_from(["gzip", "deflate", "br", "a,b,c,d,e"]))
def test_any_bytes_are_decoded_or_refused(content: bytes, name: str) -> None:
    try:
        decode(content, [("content-encoding", name)], 1000)
    except NotDecoded as exc:
        assert str(exc)


def test_the_data_of_each() -> None:
    for body, expected in (
        (b"", []),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata:a\r\n\r\ndata:  b\r\rdata: c", [b"a", b" b", b"c"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\nevent: done\nid: 1\n\nretry: 3\n", []),
        (b"event: x\ndata\n\ndata:\n\ndata: a\n\n", [b"a"]),
    ):
        assert events(body) == expected


def test_recognises_an_event_stream() -> None:
    assert is_event_stream([("content-type", "Text/Event-Stream; charset=utf-8")], b"")
    assert is_event_stream([], b"data: {}")
    assert not is_event_stream([("content-type", "application/json")], b"{}")
