"""Triton's own clients and plain gRPC, asked from the tests: see engines/speaking.py, which speaks.

They run in the upstreams' own Python. All calls block.
"""

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from .environment import ENGINES, find_upstreams, python_of

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
