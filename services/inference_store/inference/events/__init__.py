"""The Kafka message: decoding, identity, storage keys, times."""

from .capture_problems import CAPTURE_PROBLEMS, SIDES, CaptureKind, CaptureSide, flags_of, gravest
from .data_hash import data_hash_of
from .decode import decode
from .encode import encode
from .event import Extras, InferenceEvent
from .instants import parse_instant
from .reasons import DEAD_LETTER_REASONS
from .storage_key import SCHEME, Buckets, StorageKey, parse_stored
from .uid import received_at_of, uid_floor, uid_of
from .wire import FIELDS

__all__ = [
    "CAPTURE_PROBLEMS",
    "DEAD_LETTER_REASONS",
    "FIELDS",
    "SCHEME",
    "SIDES",
    "Buckets",
    "CaptureKind",
    "CaptureSide",
    "Extras",
    "InferenceEvent",
    "StorageKey",
    "data_hash_of",
    "decode",
    "encode",
    "flags_of",
    "gravest",
    "parse_instant",
    "parse_stored",
    "received_at_of",
    "uid_floor",
    "uid_of",
]
