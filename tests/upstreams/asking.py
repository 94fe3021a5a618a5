"""Calls to a model server by sockets, curl and its own clients, and how two answers differ."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from tests.servers.versions import MissingServer
from tests.upstreams.environment import ENGINES, find_upstreams, python_of

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as it is to stand on the wire; Host and Content-Length are added if missing.

    A body of `Transfer-Encoding: chunked` is written as it is: in chunks.
    """

    method: str
    path: str
    """With the query, escaped."""
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back. Header names as they were spelt."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    """Without chunks, with its content coding."""
    cut: bool = False
    """The connection ended before the body did."""


async def by_socket(address: str, asked: Asked) -> Answered:
    """Over a plain socket, written and read here. Raises ConnectionError where nothing came."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
    wire = b""
    try:
        writer.write(_on_the_wire(address, asked))
        with suppress(ConnectionResetError):  # after some of an answer that is its end
            while not _whole(wire, asked.method):
                part = await asyncio.wait_for(reader.read(2**20), _SECONDS)
                if not part:
                    break
                wire += part
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return read_answer(wire, asked.method)


def find_curl() -> Path:
    """The program. Raises MissingServer."""
    found = shutil.which("curl")
    if found is None:
        raise MissingServer("curl is not installed")
    return Path(found)


def _on_the_wire(address: str, asked: Asked) -> bytes:
    named = {name.lower() for name, _ in asked.headers}
    headers = [*([] if "host" in named else [("Host", address)]), *asked.headers]
    if asked.body and named.isdisjoint({"content-length", "transfer-encoding"}):
        headers.append(("Content-Length", str(len(asked.body))))
    lines = [f"{asked.method} {asked.path} HTTP/1.1", *(f"{n}: {v}" for n, v in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1") + asked.body


def _whole(wire: bytes, method: str) -> bool:
    """Nothing of the answer is missing, as far as its head says how long it is."""
    try:
        answer = read_answer(wire, method)
    except ConnectionError:
        return False
    names = {name.lower() for name, _ in answer.headers}
    ends = names & {"content-length", "transfer-encoding"} or _is_empty(method, answer.status)
    return bool(ends) and not answer.cut


def _is_empty(method: str, status: int) -> bool:
    return method == "HEAD" or status in (204, 304)


def read_answer(wire: bytes, method: str) -> Answered:
    """An answer from all that a connection gave until it ended."""
    head, found, rest = wire.partition(b"\r\n\r\n")
    if not found:
        raise ConnectionError(f"the connection ended after {wire[:200]!r}")
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split()[1])
    if 100 <= status < 200:
        return read_answer(rest, method)
    headers = tuple((name, value.strip()) for name, _, value in (ln.partition(":") for ln in lines))
    values = {name.lower(): value for name, value in headers}
    if _is_empty(method, status):
        return Answered(status, headers, b"")
    if values.get("transfer-encoding", "").lower() == "chunked":
        body, cut = _joined(rest)
        return Answered(status, headers, body, cut)
    return Answered(status, headers, rest, len(rest) < int(values.get("content-length", 0)))


def _joined(chunks: bytes) -> tuple[bytes, bool]:
    """The body of chunks, and whether the last one is missing."""
    parts: list[bytes] = []
    while True:
        line, found, rest = chunks.partition(b"\r\n")
        if not found:
            return b"".join(parts), True
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts), False
        parts.append(rest[:size])
        if len(rest) < size + 2:
            return b"".join(parts), True
        chunks = rest[size + 2 :]


V2 = "/inference.GRPCInferenceService"
OMI = "/ModzyModel"


@dataclass(frozen=True, slots=True)
class Called:
    """What a gRPC call gave: messages as bytes, the status, and metadata as it came."""

    responses: tuple[bytes, ...]
    code: str
    """The name of the status, `OK` or another."""
    details: str
    initial: tuple[tuple[str, str], ...]
    trailing: tuple[tuple[str, str], ...]


def tensor(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any]) -> dict[str, Any]:
    """An input for `infer`; the elements of BYTES are bytes."""
    elements = [_text(one) if isinstance(one, bytes) else one for one in data]
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": elements}


class Clients:
    """One process that asks for us. A context manager."""

    def __enter__(self) -> Self:
        environment = find_upstreams()
        path = f"{ENGINES}:{environment / 'generated'}"
        self._process = subprocess.Popen(
            [python_of(environment), "-P", str(ENGINES / "speaking.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "GRPC_VERBOSITY": "NONE"},
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=120)

    def infer(
        self,
        transport: Literal["http", "grpc"],
        address: str,
        model: str,
        inputs: Sequence[Mapping[str, Any]],
        *,
        binary: bool = True,
        **options: Any,
    ) -> Any:
        """tritonclient's `infer`: {"id", "model", "parameters", "outputs": {name: values}}.

        Where it failed {"error", "status"}. `binary`: over HTTP, with the binary data extension.
        `options`: id, outputs (names), parameters, headers.
        """
        return self._asked(
            do=f"infer_{transport}",
            address=address,
            model=model,
            inputs=list(inputs),
            binary=binary,
            **options,
        )

    def stream(
        self, address: str, model: str, inputs: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[Any]:
        """tritonclient's stream of one request, to a Triton: every answer, as `infer` gives it."""
        said = {"address": address, "model": model, "inputs": list(inputs)}
        found: list[Any] = self._asked(do="stream_grpc", **said, **options)
        return found

    def call(self, address: str, method: str, *requests: bytes, **options: Any) -> Called:
        """Any method, `/package.Service/Method`, with messages as bytes; a stream where several.

        `options`: metadata (pairs), timeout (seconds), compression (gzip or deflate).
        """
        encoded = [_text(one) for one in requests]
        said = self._asked(do="call", address=address, method=method, requests=encoded, **options)
        return Called(
            responses=tuple(base64.b64decode(one) for one in said["responses"]),
            code=said["code"],
            details=said["details"],
            initial=tuple((name, value) for name, value in said["initial"]),
            trailing=tuple((name, value) for name, value in said["trailing"]),
        )

    def encode(self, message: str, value: Mapping[str, Any]) -> bytes:
        """A message of V2 or OMI, such as `ModelInferRequest`, from protobuf's JSON form."""
        return base64.b64decode(self._asked(do="encode", message=message, value=value))

    def decode(self, message: str, value: bytes) -> Any:
        """A message's protobuf JSON form, with the names of the .proto."""
        return self._asked(do="decode", message=message, value=_text(value))

    def _asked(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the clients ended at {str(question)[:500]}")
        return json.loads(line)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
BY_TIME = frozenset({"date"})
"""Headers whose presence is compared and not their value."""


def differences(direct: Answered, proxied: Answered, *, besides: Collection[str] = ()) -> list[str]:
    """What differs between two answers, a sentence each; [] where nothing does.

    `besides`: headers, in lower case, that only the second one has.
    """
    found = [
        _differs("status", direct.status, proxied.status),
        _differs("cut off", direct.cut, proxied.cut),
        *_of_headers(_seen(direct.headers), _seen(proxied.headers, besides)),
        _of_bytes("body", direct.body, proxied.body),
    ]
    return [sentence for sentence in found if sentence]


def differences_of_calls(
    direct: Called, proxied: Called, *, besides: Collection[str] = ()
) -> list[str]:
    """The same of two gRPC calls: messages, status, details, and metadata before and after."""
    pairs = zip(direct.responses, proxied.responses, strict=False)
    found = [
        _differs("code", direct.code, proxied.code),
        _differs("details", direct.details, proxied.details),
        *_of_headers(_seen(direct.initial), _seen(proxied.initial, besides)),
        *_of_headers(_seen(direct.trailing), _seen(proxied.trailing, besides)),
        _differs("number of messages", len(direct.responses), len(proxied.responses)),
        *(_of_bytes(f"message {at}", one, other) for at, (one, other) in enumerate(pairs)),
    ]
    return [sentence for sentence in found if sentence]


def _seen(
    headers: Sequence[tuple[str, str]], besides: Collection[str] = ()
) -> dict[str, list[str]]:
    """The values of each header a caller may rely on, in their order."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower not in HOP_BY_HOP and lower not in besides:
            found.setdefault(lower, []).append("" if lower in BY_TIME else value)
    return found


def _of_headers(direct: Mapping[str, list[str]], proxied: Mapping[str, list[str]]) -> list[str]:
    names = sorted({*direct, *proxied})
    return [_differs(f"header {name}", direct.get(name), proxied.get(name)) for name in names]


def _differs(what: str, direct: object, proxied: object) -> str:
    return "" if direct == proxied else f"{what}: {direct!r} became {proxied!r}"


def _of_bytes(what: str, direct: bytes, proxied: bytes) -> str:
    if direct == proxied:
        return ""
    pairs = enumerate(zip(direct, proxied, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(direct), len(proxied)))
    one, other = direct[at : at + 40], proxied[at : at + 40]
    return (
        f"{what}: {len(direct)} and {len(proxied)} bytes, from byte {at} {one!r} became {other!r}"
    )
