"""The doctor: checks whether everything that the services need exists and fits together."""

from .checks import CHECKS as CHECKS
from .findings import Check as Check
from .findings import DoctorSettings as DoctorSettings
from .findings import Finding as Finding
from .findings import Result as Result
from .findings import State as State
from .findings import Subject as Subject
from .findings import examine as examine
from .findings import failed as failed
from .findings import find_worst as find_worst
