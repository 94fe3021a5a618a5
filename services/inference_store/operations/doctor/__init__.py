"""Is everything there that the services need, and as they need it? One list of checks."""

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
