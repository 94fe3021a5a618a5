"""The connections to the model servers: one pool each."""

import ssl
from collections.abc import Sequence
from typing import Final

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from inference_store.platform.settings import trusting
from inference_store.proxy.configuration import UpstreamEntry

# The client adds nothing to the caller's headers.
_OURS: Final = frozenset({"Accept", "Accept-Encoding", "User-Agent", "Content-Type"})
_LONGEST_HEADER: Final = 64 * 1024


class Upstreams:
    """A session for each upstream that answers REST; opened inside the running loop."""

    def __init__(self, entries: Sequence[UpstreamEntry]) -> None:
        self._sessions = {
            entry.name: _open_session(entry) for entry in entries if entry.url is not None
        }

    def session(self, name: str) -> ClientSession | None:
        """Return an upstream's session; None if it answers only gRPC."""
        return self._sessions.get(name)

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()


def _open_session(entry: UpstreamEntry) -> ClientSession:
    connector = TCPConnector(
        limit=entry.connections,
        limit_per_host=entry.connections,
        keepalive_timeout=entry.keepalive_seconds,
        ssl=_build_tls_context(entry) or True,
    )
    timeout = ClientTimeout(
        total=None,
        # includes the wait for a free connection
        connect=entry.read_seconds,
        sock_connect=entry.connect_seconds,
        sock_read=entry.read_seconds,
    )
    return ClientSession(
        connector=connector,
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
        skip_auto_headers=_OURS,
        max_line_size=_LONGEST_HEADER,
        max_field_size=_LONGEST_HEADER,
    )


def _build_tls_context(entry: UpstreamEntry) -> ssl.SSLContext | None:
    if not (entry.url or "").startswith("https://"):
        return None
    context = trusting(entry.ca_file, beside_system=True)
    if entry.certificate_file is not None:
        context.present(entry.certificate_file, entry.key_file)
    return context
