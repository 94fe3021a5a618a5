"""The upstreams that a test asks for by name, shared by a session.

Mark the tests `real_upstreams`; those of mlserver-huggingface, Triton
and KServe `real_huggingface`, `real_triton` and `real_kserve` too.
What a test stops or kills it starts itself: `with MLServer() as server`.
"""

from collections.abc import Iterator

import pytest

from tests.servers.missing import demand

from .clients import Clients
from .environment import find_upstreams
from .huggingface import HuggingFace, find_huggingface
from .kserve import KServe, find_kserve
from .mlserver import MLServer
from .triton import Triton, find_triton
from .written import ChariotEngine, OmiContainer, Stub


@pytest.fixture(scope="session")
def mlserver() -> Iterator[MLServer]:
    """A real MLServer: digits, faces, faces-text, words, echo; REST and gRPC."""
    demand("upstreams", find_upstreams)
    with MLServer() as server:
        yield server


@pytest.fixture(scope="session")
def huggingface() -> Iterator[HuggingFace]:
    """A real MLServer with mlserver-huggingface: sentiment, story; REST and gRPC."""
    demand("huggingface", find_huggingface)
    with HuggingFace() as server:
        yield server


@pytest.fixture(scope="session")
def triton() -> Iterator[Triton]:
    """A real Triton: twice, words (decoupled), echo (each datatype), blobs; REST and gRPC."""
    demand("triton", find_triton)
    with Triton() as server:
        yield server


@pytest.fixture(scope="session")
def kserve() -> Iterator[KServe]:
    """A real KServe server with the model `sums`: V1, V2 with binary tensors, gRPC."""
    demand("kserve", find_kserve)
    with KServe() as server:
        yield server


@pytest.fixture(scope="session")
def chariot_engine() -> Iterator[ChariotEngine]:
    """An engine of `chariot-v2`, written for the tests."""
    demand("upstreams", find_upstreams)
    with ChariotEngine() as server:
        yield server


@pytest.fixture(scope="session")
def omi_container() -> Iterator[OmiContainer]:
    """An OMI container, written for the tests."""
    demand("upstreams", find_upstreams)
    with OmiContainer() as server:
        yield server


@pytest.fixture(scope="session")
def stub() -> Iterator[Stub]:
    """A stub: OpenAI's and KServe V1's wire form, and a mirror."""
    demand("upstreams", find_upstreams)
    with Stub() as server:
        yield server


@pytest.fixture(params=["socket", "aiohttp", pytest.param("curl", marks=pytest.mark.real_curl)])
def way(request: pytest.FixtureRequest) -> str:
    """Each of the ways that asking.py has to send a request."""
    return str(request.param)


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    """Triton's own clients, and gRPC calls with messages as bytes."""
    demand("upstreams", find_upstreams)
    with Clients() as speaking:
        yield speaking
