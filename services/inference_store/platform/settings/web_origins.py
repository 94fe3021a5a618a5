"""Origins of URLs, compared by text: what has another spelling of a host is another host.

A URL is taken only in the plain form that every reader of URLs understands alike, so that what was
checked is what is connected to.
"""

import re
from ipaddress import IPv6Address
from typing import Final

MOST_CHARACTERS: Final = 2000
_DEFAULT_PORTS: Final = {"https": "443", "http": "80"}
_HOST: Final = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]"
_ORIGIN: Final = re.compile(rf"(https?)://({_HOST})(?::([1-9][0-9]{{0,4}}))?", re.ASCII | re.I)
# RFC 3986, without what begins a fragment
_REST: Final = re.compile(r"(?:[/?][A-Za-z0-9\-._~:/?\[\]@!$&'(),;=%+*]*)?", re.ASCII)
_PLAIN: Final = "it is a URL such as https://hooks.example/erased"


def read_origin(url: str) -> str:
    """Return the origin of a URL: lower case, without the scheme's own port.

    Raises ValueError for a URL with a user, a fragment, spaces, or letters that are not ASCII.
    """
    if len(url) > MOST_CHARACTERS:
        raise ValueError(f"it has at most {MOST_CHARACTERS:,} characters")
    authority = re.split(r"[/?#\\]", url.partition("://")[2], maxsplit=1)[0]
    if "@" in authority:
        raise ValueError("it holds no user and no password: put a secret into its query")
    if "#" in url:
        raise ValueError("it holds no fragment (#)")
    if not url.isascii():
        raise ValueError("it is in ASCII: write a host as punycode (xn--…), the rest as %XX")
    match = _ORIGIN.match(url)
    if match is None or not _REST.fullmatch(url, match.end()):
        raise ValueError(_PLAIN)
    return _write_origin(*match.groups())


def read_origins(text: str) -> frozenset[str]:
    """Return the origins of a list with commas. Raises ValueError for what is more or less."""
    origins = set()
    parts = [part.strip() for part in text.split(",")]
    for number, part in enumerate(filter(None, parts), 1):
        try:
            origin = read_origin(part)
        except ValueError:
            origin = None
        if origin is None or not _ORIGIN.fullmatch(part):
            raise ValueError(
                f"entry {number} is no origin: write https://hooks.example, or with a port"
            )
        origins.add(origin)
    return frozenset(origins)


def _write_origin(scheme: str, host: str, port: str | None) -> str:
    scheme, host = scheme.lower(), host.lower()
    if host.startswith("["):
        host = f"[{IPv6Address(host[1:-1])}]"  # a ValueError of its own
    elif ".." in host:
        raise ValueError(_PLAIN)
    if port is not None and int(port) > 2**16 - 1:
        raise ValueError("its port is at most 65535")
    is_default = port in {None, _DEFAULT_PORTS[scheme]}
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{port}"
