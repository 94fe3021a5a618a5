"""Links to the api's own routes that open one blob for a while, as a presigned link of S3 does.

Such a link of S3 to a member of a segment would open its neighbours too. The key is derived from
the S3 secret key, which every replica has, so a link ends with that key as one of S3 does.
"""

import hmac
from datetime import UTC, datetime
from typing import Final

from inference_store.inference.errors import Unauthorized
from inference_store.platform.settings import BlobSettings

EXPIRES: Final = "expires"
SIGNATURE: Final = "signature"
_LABEL: Final = b"inference-store: a link to one blob"


class RouteLinks:
    """Signs paths of the api, and checks what was signed."""

    def __init__(self, settings: BlobSettings) -> None:
        secret = settings.s3_secret_key.get_secret_value().encode()
        self._key = hmac.digest(secret, _LABEL, "sha256") if secret else None

    def sign(self, path: str, seconds: int, *, at: datetime | None = None) -> str:
        """Return a link to a path that anyone can read for `seconds`, from now or `at` on; without
        a secret key the path itself, which needs the caller's own key."""
        if self._key is None:
            return path
        expires = int((at or datetime.now(UTC)).timestamp()) + seconds
        return f"{path}?{EXPIRES}={expires}&{SIGNATURE}={self._compute(path, str(expires))}"

    def verify(self, path: str, expires: str, signature: str) -> datetime:
        """Return when a link ends, or ended. Raises Unauthorized if it was not signed here."""
        mine = self._compute(path, expires)
        if not hmac.compare_digest(mine.encode(), signature.encode("utf-8", "replace")):
            raise Unauthorized(
                f"`{SIGNATURE}` is not of this path and `{EXPIRES}`, or the store has another S3"
                " key since: request the link again, or send `Authorization: Bearer`."
            )
        return datetime.fromtimestamp(int(expires), UTC)

    def _compute(self, path: str, expires: str) -> str:
        if self._key is None:
            raise Unauthorized("This server signs no links: send `Authorization: Bearer`.")
        text = f"GET\n{path}\n{expires}"
        return hmac.digest(self._key, text.encode("utf-8", "replace"), "sha256").hex()
