"""Legal holds: filters whose inferences nothing may delete. NULL protects, and so does a doubt."""

from .changes import apply_changed as apply_changed
from .changes import apply_placed as apply_placed
from .changes import apply_released as apply_released
from .changes import block_placement as block_placement
from .hold import Hold as Hold
from .hold import HoldCriteria as HoldCriteria
from .hold import HoldFilter as HoldFilter
from .hold import build_filter as build_filter
from .hold import build_held_condition as build_held_condition
from .hold import find_hold as find_hold
from .hold import find_holds as find_holds
from .hold import judge as judge
from .hold import list_holds as list_holds
from .hold import list_in_force as list_in_force
from .hold import list_revisions as list_revisions
