"""Whether a server answers yet."""

import socket
from urllib.error import URLError
from urllib.request import urlopen


def answers(url: str) -> bool:
    """It answers with 200."""
    try:
        with urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def listens(port: int) -> bool:
    """Something of 127.0.0.1 takes connections there."""
    with socket.socket() as client:
        client.settimeout(10)
        return client.connect_ex(("127.0.0.1", port)) == 0
