"""The doctor: checks whether everything that the services need exists and fits together."""

from .checks import CHECKS
from .examine import Report, Result, examine
from .finding import Check, DoctorSettings, Finding, State, Subject, failed

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
