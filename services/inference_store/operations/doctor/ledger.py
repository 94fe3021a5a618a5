"""Checks that the ledger in the bucket and Postgres are of the same time."""

from inference_store.erasure.ledger import Ledger
from inference_store.inference.errors import BlobsAway, LedgerApart
from inference_store.objects import Blobs

from .finding import Finding, Subject, failed, ok


async def check_ledger(subject: Subject) -> list[Finding]:
    """Check for divergence: services do nothing while there is any."""
    settings = subject.settings
    with Blobs(settings, threads=1) as blobs:
        ledger = Ledger(subject.engine, blobs, prefix=settings.ledger_prefix)
        try:
            found = await ledger.inspect()
        except LedgerApart as apart:
            return [failed(apart.detail, "docs/backup.md, The ledger: what is found, what to do.")]
        except BlobsAway as away:
            remedy = "Grant s3:GetObject on its prefix, and s3:ListBucket."
            return [failed(f"the ledger cannot be read: {away}"[:300], remedy)]
    return [ok(f"entry {found.head.number} of {ledger.entries.place} is the last of both")]
