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

    ingester_admin_host: str = "127.0.0.1"
    """Address of the ingester's admin port (health and metrics)."""
    ingester_admin_port: Port = 9101
    """Admin port of the ingester; 0: any free one."""
    ingester_instance: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,249}$")] = ""
    """Name in the consumer group, unique and kept over restarts; empty: host and admin port."""
    ingester_batch_events: Count = 1000
    """Most events written in one transaction."""
    ingester_batch_rows: Count = 100_000
    """Most rows written in one transaction; a batch with more is cut."""
    ingester_fetch_threads: Count = 16
    """Threads that fetch blobs."""
    ingester_sidecars: Literal["on", "off"] = "off"
    """`on`: other producers' events are kept in the bucket too: it alone can rebuild the index."""
    ingester_poll_seconds: Seconds = 0.5
    """Longest wait for new messages."""
    ingester_retry_seconds: Seconds = 1.0
    """First wait after trouble with a server; doubles up to 30 seconds."""
    ingester_parked_batch_events: Count = 200
    """Most parked or redriven events tried at once."""
    ingester_parked_first_seconds: Seconds = 5.0
    """Wait before an event whose blob is missing is tried again; doubles each time."""
    ingester_parked_longest_seconds: Seconds = 3600.0
    """Longest wait between two tries of a parked event."""
    ingester_parked_give_up_seconds: Seconds = 24 * 3600.0
    """A parked event whose blob has not come by then is a dead letter."""
    ingester_unknown_models: Literal["register", "refuse"] = "register"
    """What an event of an unknown model does: registers it, or is a dead letter."""
    ingester_dead_letter_limit: Count = 500
    """Dead letters and parked events within the window, above which the ingester stops."""
    ingester_dead_letter_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Their share of the window's events, above which (both must be) the ingester stops."""
    ingester_dead_letter_window_seconds: Seconds = 600.0
    """Length of the window of the two limits above."""
