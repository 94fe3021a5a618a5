"""The name under which an ingester is a static member of its consumer group."""

import re
import socket

from inference_store.platform.settings import IngesterSettings


def name_instance(settings: IngesterSettings) -> str | None:
    """Return the name by which Kafka recognises an ingester that was killed and restarted.

    It gets its partitions at once, not only after the old session ends. Two ingesters with one name
    would take them from each other. A port of a host belongs to one process, so its number makes
    the name unique.
    """
    if settings.ingester_instance or not settings.ingester_admin_port:
        return settings.ingester_instance or None
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:200]
    return f"{host}-{settings.ingester_admin_port}"
