"""gRPC over HTTP/2 as far as the load needs it: unary calls, always the same, many at once.

No library does it for less CPU than what is measured. Headers are written without compression
state, those that come are not read: a call is good if all bytes of its answer came.
"""

import struct
from collections.abc import Sequence
from typing import Final

from .connections import Broken, Connection
from .workloads import Workload

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS, _PADDED = 4, 8
_INITIAL_WINDOW_SETTING: Final = 4
_MOST: Final = (1 << 31) - 1
_WINDOW_AT_FIRST: Final = 65_535
_FRAME: Final = 16_384
_GIVE_BACK: Final = 1 << 24
_HEAD: Final = struct.Struct(">IBI")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def headers_of(path: str, port: int) -> bytes:
    """A call's header block: static names, nothing indexed."""
    return b"".join(
        (
            b"\x83\x86",  # :method POST, :scheme http
            b"\x04" + _text(path),
            b"\x01" + _text(f"127.0.0.1:{port}"),
            b"\x0f\x10" + _text("application/grpc"),
            b"\x00" + _text("te") + _text("trailers"),
        )
    )


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()  # under 127 bytes


class _Stream:
    __slots__ = ("due", "got", "sent", "window")

    def __init__(self, due: float, window: int) -> None:
        self.due = due
        self.sent = 0
        self.got = 0
        self.window = window


class Http2(Connection):
    """A connection with its streams."""

    def __init__(self, port: int, work: Workload, slots: int) -> None:
        super().__init__(port)
        self.slots = slots
        self._headers = headers_of(work.path, port)
        self._message = b"\0" + struct.pack(">I", len(work.request)) + work.request
        self._expected = 5 + len(work.answer)
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._window = self._stream_window = _WINDOW_AT_FIRST
        self._taken = 0
        self._got = b""
        settings = struct.pack(">HIHIHI", 1, 0, 2, 0, _INITIAL_WINDOW_SETTING, _MOST)
        more = struct.pack(">I", _MOST - _WINDOW_AT_FIRST)
        self._send(_PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW, 0, 0, more))

    def ask(self, due: float) -> None:
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = _Stream(due, self._stream_window)
        head = frame(_HEADERS, _END_HEADERS, number, self._headers)
        self._send(head + self._parts(number, stream))

    def _parts(self, number: int, stream: _Stream) -> bytes:
        """As much of the message as the windows let through."""
        parts = []
        while stream.sent < len(self._message):
            length = min(len(self._message) - stream.sent, _FRAME, self._window, stream.window)
            if length <= 0:
                break
            part = self._message[stream.sent : stream.sent + length]
            stream.sent += length
            stream.window -= length
            self._window -= length
            last = _END_STREAM if stream.sent == len(self._message) else 0
            parts.append(frame(_DATA, last, number, part))
        return b"".join(parts)

    def answered(self) -> Sequence[tuple[float, bool]]:
        got = self._got + self._read()
        over: list[tuple[float, bool]] = []
        at = 0
        while len(got) >= at + 9:
            first, flags, number = _HEAD.unpack_from(got, at)
            end = at + 9 + (first >> 8)
            if len(got) < end:
                break
            self._frame(first & 0xFF, flags, number, got[at + 9 : end], over)
            at = end
        self._got = got[at:]
        return over

    def _frame(
        self, kind: int, flags: int, number: int, payload: bytes, over: list[tuple[float, bool]]
    ) -> None:
        if kind in (_DATA, _HEADERS):
            stream = self._streams[number]
            if kind == _DATA:
                self._data(stream, flags, payload)
            if flags & _END_STREAM:
                del self._streams[number]
                over.append((stream.due, stream.got == self._expected))
        elif kind == _RESET:
            stream = self._streams.pop(number)
            over.append((stream.due, stream.got == self._expected))
        elif kind == _AWAY:
            raise Broken(f"the server is going away: {payload[8:].decode(errors='replace')}")
        elif not flags & _ACK or kind == _WINDOW:
            self._of_connection(kind, number, payload)

    def _data(self, stream: _Stream, flags: int, payload: bytes) -> None:
        stream.got += len(payload) - (payload[0] + 1 if flags & _PADDED else 0)
        self._taken += len(payload)
        if self._taken > _GIVE_BACK:
            self._send(frame(_WINDOW, 0, 0, struct.pack(">I", self._taken)))
            self._taken = 0

    def _of_connection(self, kind: int, number: int, payload: bytes) -> None:
        if kind == _PING:
            self._send(frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == _INITIAL_WINDOW_SETTING:
                    for stream in self._streams.values():
                        stream.window += value - self._stream_window
                    self._stream_window = value
            self._send(frame(_SETTINGS, _ACK, 0))
            self._go_on()
        elif kind == _WINDOW:
            (more,) = struct.unpack(">I", payload)
            if number == 0:
                self._window += more
            elif number in self._streams:
                self._streams[number].window += more
            self._go_on()

    def _go_on(self) -> None:
        parts = []
        for number, stream in self._streams.items():
            if self._window <= 0:
                break
            if stream.sent < len(self._message):
                parts.append(self._parts(number, stream))
        if more := b"".join(parts):
            self._send(more)
