"""The upstreams that a test asks for by name, shared by a session.

Mark the tests `real_upstreams`; those of mlserver-huggingface, Triton
and KServe `real_huggingface`, `real_triton` and `real_kserve` too.
What a test stops or kills it starts itself: `with MLServer() as server`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.missing import demand
from tests.servers.server import Server

from . import model_servers
from .environment import find_upstreams


def _share(kind: type[Server], name: str, find: Callable[[], Path]) -> Any:
    """Return the fixture of a server that is started once a session, if its parts are found."""

    @pytest.fixture(scope="session")
    def server() -> Iterator[Server]:
        demand(name, find)
        with kind() as started:
            yield started

    return server


# digits, faces, faces-text, words, echo; REST and gRPC
mlserver = _share(model_servers.MLServer, "upstreams", find_upstreams)
# sentiment, story; REST and gRPC
huggingface = _share(model_servers.HuggingFace, "huggingface", model_servers.find_huggingface)
# over REST and gRPC: twice, words (decoupled)
triton = _share(model_servers.Triton, "triton", model_servers.find_triton)
# sums: V1, V2 with binary tensors, gRPC
kserve = _share(model_servers.KServe, "kserve", model_servers.find_kserve)
