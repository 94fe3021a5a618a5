"""The ingester."""

from typing import Annotated, Literal

from pydantic import Field

from .admin import AdminSettings
from .blobs import BlobSettings
from .caps import CapSettings
from .group import Count, Port, Seconds
from .kafka import KafkaSettings
from .logs import LogSettings
from .postgres import PostgresSettings


class IngesterSettings(
    LogSettings, AdminSettings, PostgresSettings, KafkaSettings, BlobSettings, CapSettings
):
    """Kafka → Postgres."""

    ingester_admin_port: Port = 9101
    """Admin port of the ingester; 0: any free one."""
    ingester_instance: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,249}$")] = ""
    """Name in the consumer group, unique and kept over restarts; empty: host and admin port."""
    ingester_batch_events: Count = 1000
    """Most events written in one transaction."""
    ingester_sidecars: Literal["on", "off"] = "off"
    """`on`: other producers' events are kept in the bucket too: it alone can rebuild the index."""
    ingester_parked_give_up_seconds: Seconds = 24 * 3600.0
    """A parked event whose blob has not come by then is a dead letter."""
    ingester_unknown_models: Literal["register", "refuse"] = "register"
    """What an event of an unknown model does: registers it, or is a dead letter."""
    ingester_dead_letter_limit: Count = 500
    """Dead letters and parked events in ten minutes above which the ingester stops."""
