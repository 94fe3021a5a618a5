"""No event may name a key of the store's own: it could be read by it, and erased with it."""

import pytest

from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings

OURS = (
    "ledger/0000000001",
    "s3://inferences/ledger/0000000001",
    "/ledger/0000000001",
    "ledger//0000000001",
    "certificates/0000000001.json",
    "certificates/leaves/x/000001",
)
NOT_OURS = ("ledgers/1", "captures/ledger/1", "certificate", "s3://other/ledger/0000000001")


def test_a_key_of_the_stores_own_is_refused() -> None:
    settings = {"s3_bucket": "inferences", "s3_allowed_buckets": "other"}
    endpoint = {"s3_endpoint": "http://127.0.0.1:1"}
    with Blobs(BlobSettings.model_validate(settings | endpoint)) as blobs:
        for key in OURS:
            with pytest.raises(ValueError, match="are the store's own"):
                blobs.parse(key)
        for key in NOT_OURS:
            assert blobs.parse(key).key == key.removeprefix("s3://other/")
