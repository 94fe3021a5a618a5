"""The tables, one file a subject. `METADATA` has them all."""

from .access import api_key, audit
from .audit_chain import audit_checkpoint, audit_head, audit_link
from .books import (
    dead_letter,
    former_producers,
    kafka_partition,
    lost_offsets,
    parked_event,
    producer_report,
    producer_sequence,
)
from .counting import outdated_count, partition_count
from .deletion import (
    blob_reference,
    erased_span,
    erasing,
    erasure,
    retention_policy,
    retention_run,
    tombstone,
)
from .dictionary import (
    former_model,
    label,
    metadata_key,
    metadata_key_delta,
    metadata_key_seen,
    model_key,
    model_label,
    partition_span,
    registration,
)
from .inference import (
    PARTITIONED,
    SIDE_TABLES,
    inference,
    inference_alias,
    metadata_bool,
    metadata_number,
    metadata_presence,
    metadata_string,
    metadata_timestamp,
    prediction,
)
from .ledger import ledger_head, ledger_intent
from .metadata import METADATA

__all__ = [
    "METADATA",
    "PARTITIONED",
    "SIDE_TABLES",
    "api_key",
    "audit",
    "audit_checkpoint",
    "audit_head",
    "audit_link",
    "blob_reference",
    "dead_letter",
    "erased_span",
    "erasing",
    "erasure",
    "former_model",
    "former_producers",
    "inference",
    "inference_alias",
    "kafka_partition",
    "label",
    "ledger_head",
    "ledger_intent",
    "lost_offsets",
    "metadata_bool",
    "metadata_key",
    "metadata_key_delta",
    "metadata_key_seen",
    "metadata_number",
    "metadata_presence",
    "metadata_string",
    "metadata_timestamp",
    "model_key",
    "model_label",
    "outdated_count",
    "parked_event",
    "partition_count",
    "partition_span",
    "prediction",
    "producer_report",
    "producer_sequence",
    "registration",
    "retention_policy",
    "retention_run",
    "tombstone",
]
