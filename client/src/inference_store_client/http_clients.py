"""Clients of httpx, which read proxies and certificates from the environment."""

from collections.abc import Callable
from typing import TypeVar

import httpx

from .errors import SettingsError

T = TypeVar("T")


def open_http(make: Callable[[], T]) -> T:
    """Make a client of httpx. Raises SettingsError for what the environment says of proxies and
    certificates, if it cannot be used."""
    try:
        return make()
    except ImportError:
        raise SettingsError(
            "ALL_PROXY or another variable names a SOCKS proxy: python -m pip install"
            " 'httpx[socks]', or unset it"
        ) from None
    except OSError as error:
        raise SettingsError(
            f"the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {error}"
        ) from error
    except (ValueError, httpx.InvalidURL) as error:
        raise SettingsError(
            f"HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names no proxy: {error}"
        ) from error
