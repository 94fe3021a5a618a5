"""The store that the functions ask: the reference system has one for the whole process."""

from inference_store_client.sync import Store

_STORES: list[Store] = []
"""The store that was chosen, if one was."""


def connect(url: str | None = None, key: str | None = None) -> None:
    """Choose the store; what is not given is found as `Store` finds it."""
    store = Store(url, key)
    disconnect()
    _STORES.append(store)


def disconnect() -> None:
    """Close the connections."""
    while _STORES:
        _STORES.pop().close()


def get_store() -> Store:
    """Return the store that was chosen, else that of the environment."""
    if not _STORES:
        connect()
    return _STORES[-1]
