"""Captures exchanges, from the answer that the caller received to the event on Kafka."""

from .captures import Captures
from .ids import ID_HEADER, id_for_answer
from .json_paths import parse_path
from .reservation import Reservation, head_size

__all__ = ["ID_HEADER", "Captures", "Reservation", "head_size", "id_for_answer", "parse_path"]
