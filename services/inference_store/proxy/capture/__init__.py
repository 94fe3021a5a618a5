"""From the answer that went back to the caller, to the event on Kafka."""

from .captures import Captures
from .ids import ID_HEADER, id_for_answer
from .json_paths import steps_of
from .ticket import Ticket, head_size

__all__ = ["ID_HEADER", "Captures", "Ticket", "head_size", "id_for_answer", "steps_of"]
