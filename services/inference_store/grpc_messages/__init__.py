"""The messages of the gRPC protocols, made from the `.proto` files in this folder.

Building the package compiles them to `messages.binpb` (setup.py); the classes are made from it when
they are first asked for, in a pool of their own: two libraries that bring the same names (a client
of Triton, MLServer) cannot collide with ours, nor with each other through us.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClassesForFiles


def message(name: str) -> Any:
    """The class of a message by its full name, like `inference.ModelInferRequest`, `RunRequest`."""
    return _classes()[name]


def parsed(name: str, written: bytes) -> Any | None:
    """A message read; None if the bytes are no such message."""
    try:
        return message(name).FromString(written)
    except DecodeError:
        return None


@cache
def _classes() -> Mapping[str, Any]:
    compiled = files(__name__).joinpath("messages.binpb")
    if not compiled.is_file():
        raise FileNotFoundError(
            f"{compiled} is not there: building the package makes it. Install it again, with "
            "`pip install --no-deps -e .` where you develop"
        )
    described = FileDescriptorSet.FromString(compiled.read_bytes())
    pool = DescriptorPool()
    for file in described.file:
        pool.Add(file)
    return GetMessageClassesForFiles([file.name for file in described.file], pool)
