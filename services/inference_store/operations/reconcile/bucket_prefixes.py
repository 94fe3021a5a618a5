"""The prefixes of buckets that a reconciliation reads, for all models or one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.events import SCHEME, Buckets
from inference_store.inference.layout import EDITED, SIDECARS, model_segment, segment_of

_SETTING = "INFERENCE_STORE_RECONCILE_PREFIXES"


@dataclass(frozen=True, slots=True)
class BucketPrefix:
    """A prefix of a bucket, without a slash at its end; `segment`: the part of one model in it."""

    bucket: str
    prefix: str
    segment: str | None = None

    @property
    def root(self) -> str:
        """The text before the segments of its models: `s3://bucket/prefix/`."""
        return f"{SCHEME}{self.bucket}/{self.prefix}{'/' if self.prefix else ''}"

    @property
    def first(self) -> str:
        """The text that all its storage keys begin with."""
        return self.root if self.segment is None else f"{self.root}{self.segment}/"

    @property
    def end(self) -> str:
        """A text after all its storage keys, and before all others that follow them."""
        # `0` is the character after the slash
        return self.first[:-1] + "0"

    @property
    def listed(self) -> str:
        """The prefix to list the bucket by."""
        return self.first.removeprefix(f"{SCHEME}{self.bucket}/")

    def __str__(self) -> str:
        return self.first


def parse_prefixes(text: str, buckets: Buckets, model_id: str | None = None) -> list[BucketPrefix]:
    """Return the prefixes of the setting, and those where the store itself writes.

    Raises Invalid for a bucket that is not allowed and for one prefix within another.
    """
    prefixes = [_parse_prefix(part.strip(), buckets) for part in text.split(",") if part.strip()]
    if text.strip() in {"", "/"}:
        prefixes = [BucketPrefix(buckets.default, "")]
    ours = [BucketPrefix(buckets.default, prefix) for prefix in (SIDECARS, EDITED)]
    prefixes = list(dict.fromkeys(prefixes))
    _refuse_nested(prefixes)
    prefixes += [
        prefix for prefix in ours if not any(_is_within(prefix, other) for other in prefixes)
    ]
    if model_id is None:
        return prefixes
    return [
        BucketPrefix(place.bucket, place.prefix, _find_segment(place, model_id, ours))
        for place in prefixes
    ]


def _find_segment(prefix: BucketPrefix, model_id: str, ours: Sequence[BucketPrefix]) -> str:
    return segment_of(model_id) if prefix in ours else model_segment(model_id)


def _parse_prefix(text: str, buckets: Buckets) -> BucketPrefix:
    bucket, prefix = buckets.default, text
    if text.startswith(SCHEME):
        bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    if bucket not in buckets.allowed and bucket != buckets.default:
        message = f"the bucket {bucket} is not allowed (INFERENCE_STORE_S3_ALLOWED_BUCKETS)"
        raise Invalid(f"{_SETTING}: {message}.", faults=[Fault("places", message)])
    return BucketPrefix(bucket, prefix.strip("/"))


def _is_within(inner: BucketPrefix, outer: BucketPrefix) -> bool:
    return inner.root.startswith(outer.root)


def _refuse_nested(prefixes: Iterable[BucketPrefix]) -> None:
    for outer, inner in _iterate_pairs(sorted(prefixes, key=str)):
        if _is_within(inner, outer):
            message = f"{inner} lies within {outer}: name the wider one alone"
            raise Invalid(f"{_SETTING}: {message}.", faults=[Fault("places", message)])


def _iterate_pairs(prefixes: Sequence[BucketPrefix]) -> Iterator[tuple[BucketPrefix, BucketPrefix]]:
    for number, first in enumerate(prefixes):
        yield from ((first, second) for second in prefixes[number + 1 :])
