"""Captures exchanges, from the answer that the caller received to the event on Kafka."""

from inference_store.proxy.capture.prepare import ID_HEADER, id_for_answer

from .captures import Captures, Reservation, head_size

__all__ = ["ID_HEADER", "Captures", "Reservation", "head_size", "id_for_answer"]
