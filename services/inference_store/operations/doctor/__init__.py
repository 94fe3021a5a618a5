"""The doctor: checks whether everything that the services need exists and fits together."""

from .checks import CHECKS
from .findings import (
    Check,
    DoctorSettings,
    Finding,
    Report,
    Result,
    State,
    Subject,
    examine,
    failed,
)

__all__ = [
    "CHECKS",
    "Check",
    "DoctorSettings",
    "Finding",
    "Report",
    "Result",
    "State",
    "Subject",
    "examine",
    "failed",
]
