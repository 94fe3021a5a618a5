"""The store's address: what a key may be sent to."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from .errors import SettingsError

_PAGES: Final = {
    "/console": "the page of the console",
    "/docs": "the docs",
    "/reference": "the page of the API",
    "/v1": "what each path of the API begins with",
}
"""Below the address of a store; people copy it with one of them."""
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """The address of a store, perhaps with a path before `/v1`."""

    url: str

    def __post_init__(self) -> None:
        if _identify(self.url) is None or not self.url.isprintable() or " " in self.url:
            raise SettingsError(f"{self.url!r} is no address: write https://store.example")
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        for page, what in _PAGES.items():
            if path.endswith(page):
                host = parts.netloc.rpartition("@")[2]
                store = f"{parts.scheme}://{host}{path.removesuffix(page)}"
                raise SettingsError(f"{page} is {what}: write {store}")
        if parts.username is not None or parts.query or parts.fragment:
            raise SettingsError("the address has no user, query or fragment: give the key as `key`")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @property
    def name(self) -> str:
        """The scheme, host and port, spelled in one way."""
        scheme, host, port = _identify(self.url) or ("", "", 0)
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def make_url(self, path: str) -> str:
        """Return the URL of a path below the address; a URL stays as it is."""
        return self.url + path if path.startswith("/") else path

    def has(self, url: str) -> bool:
        """Return whether a URL has this scheme, host and port."""
        return _identify(url) == _identify(self.url) is not None


def _identify(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; None for what is no address on the web."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None
