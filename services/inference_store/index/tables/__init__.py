"""The tables, one file a subject. `METADATA` has them all."""

from .access import *  # noqa: F403
from .accounting import *  # noqa: F403
from .deletion import *  # noqa: F403
from .inferences import *  # noqa: F403
