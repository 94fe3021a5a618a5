"""Comparing the bucket with the index."""

from typing import Literal

from .group import SecondsOrZero, SettingsGroup


class ReconcileSettings(SettingsGroup):
    """Where inferences' objects lie, and when they are compared with the index."""

    reconcile_schedule: Literal["off", "daily"] = "off"
    """`daily`: the retention service compares the bucket with the index once a day."""
    reconcile_prefixes: str = "captures"
    """Where nothing lies but inferences' blobs: prefixes, or `s3://bucket/prefix`, by commas."""
    reconcile_grace_seconds: SecondsOrZero = 24 * 3600.0
    """How much older than what the ingesters have read an object must be to count as an orphan."""
