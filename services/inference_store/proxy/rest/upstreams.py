"""The connections to the model servers: one pool each."""

import ssl
from collections.abc import Sequence
from typing import Final

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from inference_store.platform.settings import trusting
from inference_store.proxy.configuration import UpstreamEntry

# Nothing is added to what the caller sent.
_OURS: Final = frozenset({"Accept", "Accept-Encoding", "User-Agent", "Content-Type"})
_LONGEST_HEADER: Final = 64 * 1024


class Upstreams:
    """A session for each upstream that answers REST; opened inside the running loop."""

    def __init__(self, entries: Sequence[UpstreamEntry]) -> None:
        self._sessions = {each.name: _session(each) for each in entries if each.url is not None}

    def session(self, name: str) -> ClientSession | None:
        """Its session; None: it answers gRPC alone."""
        return self._sessions.get(name)

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()


def _session(entry: UpstreamEntry) -> ClientSession:
    connector = TCPConnector(
        limit=entry.connections,
        limit_per_host=entry.connections,
        keepalive_timeout=entry.keepalive_seconds,
        ssl=_tls(entry) or True,
    )
    timeout = ClientTimeout(
        total=None,
        # for a connection to be free, too
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


def _tls(entry: UpstreamEntry) -> ssl.SSLContext | None:
    if not (entry.url or "").startswith("https://"):
        return None
    context = trusting(entry.ca_file, beside_system=True)
    if entry.certificate_file is not None:
        context.load_cert_chain(entry.certificate_file, entry.key_file)
    return context
