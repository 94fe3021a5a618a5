"""Signs messages as Standard Webhooks 1.0 says: HMAC-SHA256 over id, time and body."""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence


def make_headers(
    keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes
) -> Mapping[str, str]:
    """Return the three headers of a message; `timestamp`: of this attempt, in Unix seconds.

    It is signed with each key by itself, so that a receiver may have the old or the new one.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    signatures = (f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
