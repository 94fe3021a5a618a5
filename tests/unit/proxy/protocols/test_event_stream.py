"""Server-sent events."""

import pytest

from inference_store.proxy.protocols.event_stream import events, is_event_stream


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", []),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata:a\r\n\r\ndata:  b\r\rdata: c", [b"a", b" b", b"c"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\nevent: done\nid: 1\n\nretry: 3\n", []),
        (b"event: x\ndata\n\ndata:\n\ndata: a\n\n", [b"a"]),
    ],
)
def test_the_data_of_each(body: bytes, expected: list[bytes]) -> None:
    assert events(body) == expected


def test_recognises_an_event_stream() -> None:
    assert is_event_stream([("content-type", "Text/Event-Stream; charset=utf-8")], b"")
    assert is_event_stream([], b"data: {}")
    assert not is_event_stream([("content-type", "application/json")], b"{}")
