"""The retention service."""

from typing import Annotated

from pydantic import Field

from .access import AuditSettings
from .admin import AdminSettings
from .blobs import BlobSettings
from .certificates import CertificateSettings
from .group import Count, Port, Seconds
from .logs import LogSettings
from .postgres import PostgresSettings
from .reconcile import ReconcileSettings


class RetentionSettings(
    LogSettings,
    AdminSettings,
    PostgresSettings,
    BlobSettings,
    AuditSettings,
    ReconcileSettings,
    CertificateSettings,
):
    """Deletes by policy, on a schedule."""

    retention_admin_port: Port = 9103
    """Admin port of the retention service; 0: any free one."""
    retention_interval_seconds: Seconds = 300.0
    """Time between two scheduled runs."""
    retention_batch_inferences: Count = 1000
    """Most inferences marked, deleted and forgotten in one step."""
    export_part_inferences: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most inferences in one part of an export."""
    export_part_bytes: Annotated[int, Field(ge=1, le=1024**3)] = 256 * 1024 * 1024
    """Most bytes of blobs in one part of an export that copies them; takes the disk twice."""
    export_blob_bytes: Annotated[int, Field(ge=1, le=256 * 1024 * 1024)] = 16 * 1024 * 1024
    """Largest blob that an export copies; a larger one is left out, and counted."""
    dead_letter_keep_seconds: Seconds = 90 * 24 * 3600.0
    """How long dead letters are kept after they were discarded or redriven; open ones stay."""
    run_keep_seconds: Seconds = 400 * 24 * 3600.0
    """How long ended runs, exports, reconciliations and erasures are kept."""
    ledger_values_keep_seconds: Seconds = 90 * 24 * 3600.0
    """How long entries of the ledger say what they said: longer than the oldest backup is kept."""
    tombstone_seconds: Seconds = 30 * 24 * 3600.0
    """How long an erased inference is remembered: longer than an event can still arrive."""
