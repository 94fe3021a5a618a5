"""The Kafka message: decoding, identity, storage keys, times."""

from .event import CAPTURE_PROBLEMS as CAPTURE_PROBLEMS
from .event import DEAD_LETTER_REASONS as DEAD_LETTER_REASONS
from .event import SCHEME as SCHEME
from .event import SIDES as SIDES
from .event import Buckets as Buckets
from .event import CaptureKind as CaptureKind
from .event import CaptureSide as CaptureSide
from .event import Extras as Extras
from .event import InferenceEvent as InferenceEvent
from .event import StorageKey as StorageKey
from .event import data_hash_of as data_hash_of
from .event import flags_of as flags_of
from .event import gravest as gravest
from .event import parse_instant as parse_instant
from .event import parse_stored as parse_stored
from .event import received_at_of as received_at_of
from .event import uid_floor as uid_floor
from .event import uid_of as uid_of
from .wire import FIELDS as FIELDS
from .wire import decode as decode
from .wire import encode as encode
