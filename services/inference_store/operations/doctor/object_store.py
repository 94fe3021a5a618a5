"""Checks the buckets: they exist, our keys can read them, and a delete removes for good."""

import asyncio
from collections.abc import Iterator

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects.inspection import (
    NO_NAME,
    NOT_S3,
    BucketError,
    BucketState,
    inspect_bucket,
)

from .finding import Finding, Subject, failed, ok, warning

_NAMES = "INFERENCE_STORE_S3_ACCESS_KEY and INFERENCE_STORE_S3_SECRET_KEY"
_KEYS = f"Check {_NAMES}, or the role that is taken instead."
_ENDPOINT = "INFERENCE_STORE_S3_ENDPOINT"
# By S3's code: what is wrong, and what to do.
_ERRORS = {
    "NoSuchBucket": (
        "there is no such bucket",
        "Create it, or fix INFERENCE_STORE_S3_BUCKET and INFERENCE_STORE_S3_ALLOWED_BUCKETS.",
    ),
    NO_NAME: (
        "no bucket can have this name",
        "Write the name alone, such as my-bucket, in INFERENCE_STORE_S3_BUCKET and"
        " INFERENCE_STORE_S3_ALLOWED_BUCKETS.",
    ),
    "InvalidAccessKeyId": ("the access key is not known", _KEYS),
    "SignatureDoesNotMatch": ("the secret key is wrong", _KEYS),
    "ExpiredToken": ("the login has expired", _KEYS),
    "AccessDenied": ("the keys have no right to list it", f"{_KEYS} Grant s3:ListBucket."),
    "RequestTimeTooSkewed": (
        "the clocks are too far apart",
        "Set this machine's clock: see the check 'object store clock'.",
    ),
    "AuthorizationHeaderMalformed": ("the region is wrong", "Check INFERENCE_STORE_S3_REGION."),
    "PermanentRedirect": (
        "the bucket is elsewhere",
        f"Check INFERENCE_STORE_S3_REGION and {_ENDPOINT}.",
    ),
    NOT_S3: ("what answers is no S3 server, or stands before one", f"Check {_ENDPOINT}."),
}
_UNKNOWN = ("the object store refuses", "Look the code up in the object store's manual.")


async def check_buckets(subject: Subject) -> list[Finding]:
    """Check every bucket that may be read or deleted from."""
    names = sorted(subject.settings.buckets)
    by_bucket = await asyncio.gather(*(_check_bucket(subject, name) for name in names))
    return [finding for findings in by_bucket for finding in findings]


async def _check_bucket(subject: Subject, name: str) -> list[Finding]:
    try:
        state = await asyncio.to_thread(inspect_bucket, subject.settings, name)
    except BucketError as error:
        problem, remedy = _ERRORS.get(error.code, _UNKNOWN)
        return [failed(f"{name}: {problem} ({error.code}: {error})"[:300], remedy)]
    except ObjectStoreUnavailable as error:
        remedy = "Is INFERENCE_STORE_S3_ENDPOINT its address as seen from here, and its CA known?"
        return [failed(f"the object store does not answer: {error}"[:300], remedy)]
    return list(_check_versions(name, state)) or [ok(f"{name}: versioning {state.versioning}")]


def _check_versions(name: str, state: BucketState) -> Iterator[Finding]:
    if state.missing_rights:
        yield warning(
            f"{name}: may not look at its versioning or its lock",
            f"Grant {' and '.join(state.missing_rights)}.",
        )
    if state.versioning == "Suspended":
        yield warning(
            f"{name}: versioning is suspended: an overwrite is final, while older versions stay",
            "Enable it again; or leave it off for good, and delete the older versions.",
        )
    if state.locked_days:
        yield warning(
            f"{name}: S3 locks every new object for {state.locked_days} days: until then no policy"
            " and no erasure can delete it",
            "Keep policies longer than that, or remove the bucket's default retention.",
        )
