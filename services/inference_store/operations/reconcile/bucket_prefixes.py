"""The prefixes of buckets that a reconciliation reads, for all models or one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.events import SCHEME, Buckets
from inference_store.inference.layout import EDITED, SIDECARS, segment_of

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
    wanted = [_parse_prefix(each.strip(), buckets) for each in text.split(",") if each.strip()]
    if text.strip() in {"", "/"}:
        wanted = [BucketPrefix(buckets.default, "")]
    ours = [BucketPrefix(buckets.default, each) for each in (SIDECARS, EDITED)]
    wanted = list(dict.fromkeys(wanted))
    _refuse_nested(wanted)
    wanted += [each for each in ours if not any(_within(each, other) for other in wanted)]
    if model_id is None:
        return wanted
    return [BucketPrefix(one.bucket, one.prefix, _segment(one, model_id, ours)) for one in wanted]


def _segment(place: BucketPrefix, model_id: str, ours: Sequence[BucketPrefix]) -> str:
    return segment_of(model_id) if place in ours else quote(model_id, safe="")


def _parse_prefix(text: str, buckets: Buckets) -> BucketPrefix:
    bucket, prefix = buckets.default, text
    if text.startswith(SCHEME):
        bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    if bucket not in buckets.allowed and bucket != buckets.default:
        message = f"the bucket {bucket} is not allowed (INFERENCE_STORE_S3_ALLOWED_BUCKETS)"
        raise Invalid(f"{_SETTING}: {message}.", faults=[Fault("places", message)])
    return BucketPrefix(bucket, prefix.strip("/"))


def _within(one: BucketPrefix, other: BucketPrefix) -> bool:
    return one.root.startswith(other.root)


def _refuse_nested(places: Iterable[BucketPrefix]) -> None:
    for one, other in _iterate_pairs(sorted(places, key=str)):
        if _within(other, one):
            message = f"{other} lies within {one}: name the wider one alone"
            raise Invalid(f"{_SETTING}: {message}.", faults=[Fault("places", message)])


def _iterate_pairs(places: Sequence[BucketPrefix]) -> Iterator[tuple[BucketPrefix, BucketPrefix]]:
    for number, one in enumerate(places):
        yield from ((one, other) for other in places[number + 1 :])
