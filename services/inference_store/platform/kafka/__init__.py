"""Connections to Kafka, the same for every client of ours."""

from .connection import client_arguments, why_away
from .tokens import ClientCredentials

__all__ = ["ClientCredentials", "client_arguments", "why_away"]
