"""Each test is about both clients."""

from tests.both_clients import both as client  # noqa: F401
