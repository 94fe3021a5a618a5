"""Checks that the ledger in the bucket and Postgres are of the same time."""

from inference_store.erasure.ledger import Ledger
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable
from inference_store.objects import Blobs

from .finding import Finding, Subject, failed, ok


async def check_ledger(subject: Subject) -> list[Finding]:
    """Check for divergence: services do nothing while there is any."""
    settings = subject.settings
    with Blobs(settings, threads=1) as blobs:
        ledger = Ledger(subject.engine, blobs, prefix=settings.ledger_prefix)
        try:
            comparison = await ledger.inspect()
        except LedgerDiverged as diverged:
            remedy = "docs/how-to/backup.md, The ledger: what is found, what to do."
            return [failed(diverged.detail, remedy)]
        except ObjectStoreUnavailable as error:
            remedy = "Grant s3:GetObject on its prefix, and s3:ListBucket."
            return [failed(f"the ledger cannot be read: {error}"[:300], remedy)]
    return [ok(f"entry {comparison.head.number} of {ledger.entries.location} is the last of both")]
