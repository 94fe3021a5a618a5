"""The comparison with real model servers sees all that a caller could see, and nothing else."""

from dataclasses import replace

from tests.upstreams.asking import Answered, read_answer
from tests.upstreams.clients import Called
from tests.upstreams.compare import differences, differences_of_calls

ANSWER = Answered(200, (("Content-Type", "application/json"), ("Date", "now")), b'{"id":"a"}')
CALL = Called((b"one", b"two"), "OK", "", (), (("ce-id", "a"),))


def test_the_same_is_the_same() -> None:
    later = (("date", "then"), ("content-type", "application/json"), ("Connection", "close"))
    assert differences(ANSWER, replace(ANSWER, headers=later)) == []
    assert differences_of_calls(CALL, CALL) == []


def test_reports_differences() -> None:
    more = replace(ANSWER, headers=(*ANSWER.headers, ("X-Id", "a")))
    assert differences(ANSWER, more, besides={"x-id"}) == []
    other_type = (("content-type", "Application/JSON"), ("Date", "now"))
    for other, sentence in (
        (more, "header x-id: None became ['a']"),
        (replace(ANSWER, status=502), "status: 200 became 502"),
        (replace(ANSWER, cut=True), "cut off: False became True"),
        (
            replace(ANSWER, body=b'{"id": "a"}'),
            """body: 10 and 11 bytes, from byte 6 b'"a"}' became b' "a"}'""",
        ),
        (
            replace(ANSWER, headers=other_type),
            "header content-type: ['application/json'] became ['Application/JSON']",
        ),
        (replace(ANSWER, headers=ANSWER.headers[:1]), "header date: [''] became None"),
    ):
        assert differences(ANSWER, other) == [sentence]
    for call, sentence in (
        (replace(CALL, code="INTERNAL"), "code: 'OK' became 'INTERNAL'"),
        (replace(CALL, details="no"), "details: '' became 'no'"),
        (replace(CALL, responses=CALL.responses[:1]), "number of messages: 2 became 1"),
        (
            replace(CALL, responses=(b"one", b"too")),
            "message 1: 3 and 3 bytes, from byte 1 b'wo' became b'oo'",
        ),
        (replace(CALL, trailing=()), "header ce-id: ['a'] became None"),
    ):
        assert differences_of_calls(CALL, call) == [sentence]


def test_an_answer_is_whole_or_cut() -> None:
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert (read_answer(wire, "GET").body, read_answer(wire, "GET").cut) == (b"abcde", False)
    assert all(
        read_answer(wire[:end], "GET").cut for end in range(wire.index(b"abc"), len(wire) - 4)
    )
    wire = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc"
    assert not read_answer(wire, "GET").cut
    assert read_answer(wire[:-1], "GET").cut
