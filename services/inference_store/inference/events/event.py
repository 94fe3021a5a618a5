"""The event: its fields, storage keys, times, identity, and what can be wrong with it."""

import re
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr

from inference_store.inference.layout import check_id, member_of, segment_of_key
from inference_store.inference.tar import BLOCK
from inference_store.inference.task_types import task_type_named

SCHEME = "s3://"
MAX_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class StorageKey:
    """A blob's location; its text is `s3://bucket/key`."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets that may be read and deleted from."""

    default: str
    allowed: Set[str]
    # prefixes of our own keys in the default bucket: no event may name such a key
    closed: tuple[str, ...] = ()

    def resolve(self, text: str) -> StorageKey:
        """Return the location that an event's storage key names.

        Raises ValueError, with the remedy, for a bucket off the allow-list or a key that S3 cannot
        hold, or that is our own: an event must not make us read a foreign bucket, nor show or
        delete our own objects.
        """
        if text.startswith(SCHEME):
            bucket, _, key = text[len(SCHEME) :].partition("/")
        else:
            bucket, key = self.default, text
        if bucket != self.default and bucket not in self.allowed:
            buckets = ", ".join(sorted(self.allowed | {self.default}))
            raise ValueError(
                f"bucket {bucket!r} is not allowed; allowed are {buckets}"
                " (INFERENCE_STORE_S3_ALLOWED_BUCKETS)"
            )
        if self.is_closed(StorageKey(bucket, key)):
            raise ValueError(
                f"{key!r}: keys that begin with {' or '.join(self.closed)} are the store's own"
            )
        return StorageKey(bucket, _check_place(_check_key(key)))

    def is_closed(self, key: StorageKey) -> bool:
        """Return whether the key is one of our own, which no blob of an inference has."""
        return key.bucket == self.default and key.key.lstrip("/").startswith(self.closed)


def _check_key(key: str) -> str:
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueError("the storage key holds a lone surrogate") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise ValueError(f"a storage key has 1 to {MAX_KEY_BYTES} bytes, not {size}")
    if "\0" in key:
        raise ValueError("the storage key holds NUL")
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise ValueError("URL paths resolve `.` and `..`: no client can request such a key")
    return key


def _check_place(key: str) -> str:
    """Refuse what would show or erase captures of others: a whole segment, and a place in one where
    no member can be."""
    if segment_of_key(key) is not None:
        raise ValueError("a segment holds many captures: a key names one, `#<offset>+<length>`")
    member = member_of(key)
    if member is not None and member.offset < BLOCK:
        raise ValueError(f"no member of a segment begins before byte {BLOCK}")
    return key


def parse_stored(text: str) -> StorageKey:
    """Return the StorageKey of the text that the index stores (`s3://bucket/key`)."""
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    return StorageKey(bucket, key)


def find_object(storage_key: str) -> tuple[str, int]:
    """Return the storage key of the object that holds a blob, and where in it the blob ends: 0 if
    it is the object."""
    place = parse_stored(storage_key)
    member = member_of(place.key) if "#" in storage_key else None
    if member is None:
        return storage_key, 0
    return str(StorageKey(place.bucket, member.segment)), member.offset + member.length


# Without the hour 24, which Python 3.14 reads as midnight of the next day.
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]((?!24)\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:[0-5]\d))",
    re.ASCII,
)
# Go's zero time.Time; everything of year 1 counts as unset.
_UNSET_YEAR = 1


def parse_instant(text: str) -> datetime | None:
    """Return the instant in UTC, floored to microseconds; None for Go's unset time.

    Raises ValueError, with the reason, for anything but RFC 3339.
    """
    usual = text[-1:] == "Z" and text[10:11] == "T" and text[19:20] in ("Z", ".")
    if usual and text[11:13] != "24" and text.isascii():
        try:  # Go's usual form, read in C; digits beyond the sixth are cut off
            at = datetime.fromisoformat(text)
            return None if at.year == _UNSET_YEAR else at
        except ValueError:
            pass
    return _parse_any(text)


def _parse_any(text: str) -> datetime | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:64]!r} is not an RFC 3339 time with an offset")
    date, time, fraction, offset = match.groups()
    if time.endswith("60"):
        raise ValueError(f"{text[:64]!r} is a leap second, which is not supported")
    if date.startswith("0000"):
        return None
    spelled = f"{date}T{time}.{(fraction or '')[:6]:0<6}{offset or '+00:00'}"
    try:
        at = datetime.fromisoformat(spelled)
        return None if at.year == _UNSET_YEAR else at.astimezone(UTC)
    except (ValueError, OverflowError) as wrong:
        raise ValueError(f"{text[:64]!r} is not a time: {wrong}") from None


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds NUL")
    return text


def _check_reason(reason: str) -> str:
    if reason not in CAPTURE_PROBLEMS:
        raise ValueError(f"expected one of {', '.join(CAPTURE_PROBLEMS)}")
    return reason


def _hash(text: str) -> str:
    data_hash = data_hash_of(text)
    if data_hash is None:
        raise ValueError("expected 64 hexadecimal digits")
    return data_hash


def _task_type(name: str) -> str:
    task_type = task_type_named(name)
    if task_type is None:
        raise ValueError("expected a task type")
    return task_type.name


Id = Annotated[StrictStr, AfterValidator(check_id)]
Word = Annotated[str, Field(strict=True, max_length=256), AfterValidator(_no_nul)]
Sentence = Annotated[str, Field(strict=True, max_length=16_384), AfterValidator(_no_nul)]
Reason = Annotated[StrictStr, AfterValidator(_check_reason)]
Int32 = Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]
Size = Annotated[StrictInt, Field(ge=0, lt=2**63)]
Pixels = Annotated[StrictInt, Field(gt=0, lt=2**31)]
Position = Annotated[Int32, Field(ge=0)]
TaskType = Annotated[Word, AfterValidator(_task_type)]
DataHash = Annotated[Word, AfterValidator(_hash)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """The fields that a producer may add to the nine. None: unknown, never guessed.

    The types are those of the wire, which checks them; this class does not.
    """

    capture_id: UUID | None = None
    project_id: Id | None = None
    model_name: Word | None = None
    model_version: Word | None = None
    task_type: TaskType | None = None
    protocol: Word | None = None
    action: Word | None = None
    ok: StrictBool | None = None
    http_status: Int32 | None = None
    grpc_code: Int32 | None = None
    error: Sentence | None = None
    trace_id: Word | None = None
    data_hash: DataHash | None = None
    data_size: Size | None = None
    data_content_type: Word | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    batch_index: Position | None = None
    batch_size: Position | None = None
    # of the segment that holds the blobs: its captures, its bytes, and their SHA-256
    segment_members: Position | None = None
    segment_bytes: Size | None = None
    segment_hash: DataHash | None = None


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceEvent:
    """A decoded event. Times are UTC, floored to microseconds; None if unset."""

    uid: UUID
    model_id: str
    inference_id: str
    received_at: datetime
    forwarded_at: datetime | None = None
    responded_at: datetime | None = None
    published_at: datetime | None = None
    data: StorageKey | None = None
    response: StorageKey | None = None
    metadata: StorageKey | None = None
    aliases: tuple[str, ...] = ()
    extras: Extras = NO_EXTRAS
    inline_metadata: bytes | None = field(default=None, repr=False)
    inline_response: bytes | None = field(default=None, repr=False)
    flags: tuple[str, ...] = ()


# The identity of an inference: a UUIDv8 (RFC 9562) computed from its event.
#
#     48 bits  Unix milliseconds of request_received_at
#      4 bits  version 8
#     12 bits  microseconds within that millisecond
#      2 bits  variant
#     62 bits  hash of the length-prefixed model id, inference id, and the (bucket, key) of
#              data and response
#
# The same event gives the same uid however often it arrives, and uids sort by time.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HASH_BITS = 62
_HASH_MASK = (1 << _HASH_BITS) - 1
LOWEST = datetime(2000, 1, 1, tzinfo=UTC)
HIGHEST = datetime(9999, 12, 31, tzinfo=UTC)


def _time_bits(at: datetime) -> int:
    milliseconds, microseconds = divmod((at - _EPOCH) // _MICROSECOND, 1000)
    return (milliseconds << 80) | (8 << 76) | (microseconds << 64) | (2 << _HASH_BITS)


def uid_of(received_at: datetime, *identity: str) -> UUID:
    """Return the uid of an event received at that time; `identity` is hashed with lengths."""
    digest = blake2b(digest_size=8)
    for part in identity:
        encoded = part.encode("utf-8")
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    tail = int.from_bytes(digest.digest(), "big") & _HASH_MASK
    return UUID(int=_time_bits(received_at) | tail)


def uid_floor(at: datetime) -> UUID:
    """Return the smallest uid of an instant: `received_at >= at` is `uid >= uid_floor(at)`."""
    return UUID(int=_time_bits(min(max(at.astimezone(UTC), _EPOCH), HIGHEST)))


def received_at_of(uid: UUID) -> datetime:
    """Return the instant that a uid was made for, to the microsecond."""
    milliseconds = uid.int >> 80
    microseconds = (uid.int >> 64) & 0xFFF
    return _EPOCH + timedelta(milliseconds=milliseconds, microseconds=microseconds)


# The prefix is the proxy's, for a redacted input: only the owner of the key can compute the hash.
_HASH: Final = re.compile(r"(hmac-sha256:)?[0-9a-f]{64}")


def data_hash_of(text: str) -> str | None:
    """Return the hash in a text, which may be in capitals; None if it is not a hash."""
    small = text.lower()
    return small if _HASH.fullmatch(small) else None


DEAD_LETTER_REASONS = {
    "not_json": "The message is not a JSON object in UTF-8.",
    "not_an_event": "A field of the nine is missing or has the wrong type.",
    "invalid_id": (
        "An id is empty, `.` or `..`, holds NUL or a lone surrogate, or is over 256 characters."
    ),
    "invalid_time": "A time is not RFC 3339.",
    "time_out_of_range": (
        "request_received_at is before 2000 or more than 24 hours after the record's time."
    ),
    "unreadable_record": "The rest of its Kafka batch cannot be read; the payload is that batch.",
    "invalid_storage_key": "A storage key names no key, or a bucket or a key that is not allowed.",
    "unknown_model": (
        "The model is not registered, and the ingester is set to refuse it, or it is one of a"
        " message of ground truth."
    ),
    "blob_missing": "A blob the index needs did not come in time.",
    "blob_forbidden": "The object store refuses a blob the index needs, and gives others.",
    "unindexable": "Postgres refuses a value of this event.",
    "message_too_large": "The message is larger than a batch, or a set of ground truth, may be.",
    "truth_ambiguous": "Several inferences have what a message of ground truth names.",
    "truth_refused": "A message of ground truth is refused, as a row of a file would be.",
}


# The problems of a capture: the one list of its reasons, by the side of the exchange.
#
# A producer names them in the event's `capture_problems`. Each is the flag `capture_<reason>` of
# the inference, the property `request_problem` or `response_problem` in filters, and a label of the
# proxy's counter.

CaptureSide: TypeAlias = Literal["request", "response"]
CaptureKind: TypeAlias = Literal[
    "missing",
    "over_cap",
    "broken_off",
    "not_json",
    "unreadable",
    "no_input",
    "not_divided",
    "misshapen",
    "length_lost",
]
SIDES: Final[tuple[CaptureSide, ...]] = ("request", "response")
# The gravest first: only the first one of each side is reported.
_KINDS: Final[Mapping[CaptureSide, Mapping[CaptureKind, str]]] = MappingProxyType(
    {
        "request": {
            "missing": "Only the answer was logged: no request came for it in time.",
            "over_cap": "The request is over a cap, or there was no memory for it: it is lost.",
            "broken_off": "The request broke off: what came of it is kept, and not read.",
            "not_json": "The request is no JSON: its body is kept as the input.",
            "unreadable": "The request, or a part of it, cannot be read.",
            "no_input": "The request holds no input.",
            "not_divided": "The request holds too many inputs: it is one inference.",
            "misshapen": "An input has another number of values than its shape says.",
            "length_lost": "A logger lost where the JSON ends before binary tensors; it was found.",
        },
        "response": {
            "missing": "Only the request was logged: no answer came to it in time.",
            "over_cap": "The response is over a cap, or there was no memory for it: it is lost.",
            "broken_off": "The response broke off: what came of it is kept.",
            "not_json": "The response, or a part of it, is no JSON.",
            "unreadable": "The response, or a part of it, cannot be read.",
            "not_divided": (
                "The response does not match the inputs: they are one inference. Or it may be the"
                " answer to another request of a stream."
            ),
            "misshapen": "An output has another number of values than its shape says.",
            "length_lost": "The same of a response.",
        },
    }
)
CAPTURE_PROBLEMS: Final[Mapping[str, str]] = MappingProxyType(
    {f"{side}_{kind}": text for side, kinds in _KINDS.items() for kind, text in kinds.items()}
)
_FLAG: Final = "capture_"


def gravest(problems: Collection[tuple[CaptureSide, CaptureKind]]) -> list[str]:
    """Return the reasons to report: at most one of each side."""
    kinds_by_side = (
        [kind for kind in kinds if (side, kind) in problems] for side, kinds in _KINDS.items()
    )
    return [
        f"{side}_{kinds[0]}" for side, kinds in zip(_KINDS, kinds_by_side, strict=True) if kinds
    ]


def flag_of(reason: str) -> str:
    """Return the flag of an inference whose capture has this problem."""
    return _FLAG + reason


def flags_of(side: CaptureSide) -> Mapping[str, CaptureKind]:
    """Return the kind of each flag of a side."""
    return {flag_of(f"{side}_{kind}"): kind for kind in _KINDS[side]}
