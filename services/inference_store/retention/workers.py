"""The workers of the service that leads, wired from its settings."""

import asyncio
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Ledger
from inference_store.erasure.log.chain_head import AUDIT_HEAD, ChainHead
from inference_store.erasure.log.keys import signing_keys
from inference_store.export.jobs.blob_copies import CopyLimits
from inference_store.objects import Blobs
from inference_store.platform.settings import KafkaSettings, RetentionSettings

from .certificate_worker import CertificateWorker
from .certifier import Certifier
from .eraser import Eraser
from .erasure_worker import ErasureWorker
from .export_worker import ExportWorker
from .housekeeping import Housekeeping
from .leadership_check import LeadershipCheck
from .marker import Marker
from .orphan_eraser import OrphanEraser
from .partition_counter import PartitionCounter
from .quarantine import QuarantineEraser
from .reconciliation_worker import ReconciliationWorker
from .residual_in_holds import ResidualInHolds
from .run_worker import RunWorker
from .taken_over_parts import TakenOverParts
from .turn_schedule import TurnSchedule


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers whose methods are the jobs of a turn."""

    schedule: TurnSchedule
    erasures: ErasureWorker
    certificates: CertificateWorker
    residual_in_holds: ResidualInHolds
    runs: RunWorker
    housekeeping: Housekeeping
    partition_counter: PartitionCounter
    reconciliation_worker: ReconciliationWorker
    exports: ExportWorker
    taken_over_parts: TakenOverParts


def build_workers(  # noqa: PLR0917
    settings: RetentionSettings,
    engine: AsyncEngine,
    blobs: Blobs,
    check: LeadershipCheck,
    due: asyncio.Event,
    kafka: KafkaSettings | None,
) -> Workers:
    """Build the workers. `due`: set by the schedule."""
    batch, schedule = settings.retention_batch_inferences, TurnSchedule(due)
    ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
    certifier = _build_certifier(settings, engine, blobs)
    eraser = Eraser(engine, blobs, ledger, check, batch=batch, certifier=certifier)
    marker = Marker(engine, ledger, QuarantineEraser(engine, blobs, ledger, check), check)
    orphans = OrphanEraser(settings, engine, blobs, ledger, check, certifier)
    return Workers(
        schedule=schedule,
        erasures=ErasureWorker(engine, marker, eraser, orphans, check, schedule, batch=batch),
        certificates=CertificateWorker(engine, certifier, check),
        residual_in_holds=ResidualInHolds(engine, check, certifier),
        runs=RunWorker(engine, ledger, eraser, batch=batch),
        housekeeping=Housekeeping(settings, engine, ledger, check, _find_audit_head(settings)),
        partition_counter=PartitionCounter(engine, check, schedule),
        reconciliation_worker=ReconciliationWorker(settings, engine, blobs, check, kafka),
        exports=ExportWorker(
            engine,
            blobs,
            check,
            most=settings.export_part_inferences,
            copies=CopyLimits(settings.export_blob_bytes, settings.export_part_bytes),
        ),
        taken_over_parts=TakenOverParts(engine, blobs, schedule),
    )


def _build_certifier(
    settings: RetentionSettings, engine: AsyncEngine, blobs: Blobs
) -> Certifier | None:
    """Build the certifier; None if there is no key to sign with."""
    keys = signing_keys(settings)
    if not keys:
        return None
    return Certifier(
        engine,
        blobs,
        keys,
        events_seconds=settings.tombstone_seconds,
        ledger_seconds=settings.ledger_values_keep_seconds,
        audit_seconds=settings.audit_keep_seconds,
        head=ChainHead(settings, lock_days=settings.certificate_head_lock_days),
    )


def _find_audit_head(settings: RetentionSettings) -> ChainHead | None:
    """Return the locked object for the newest checkpoint of the audit; None without a key."""
    if not signing_keys(settings):
        return None
    return ChainHead(settings, lock_days=settings.certificate_head_lock_days, key=AUDIT_HEAD)
