"""Connections to Kafka, the same for every client of ours."""

from .connection import client_arguments, find_connection_error
from .tokens import ClientCredentials

__all__ = ["ClientCredentials", "client_arguments", "find_connection_error"]
