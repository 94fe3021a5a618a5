"""An erasure as it is stored, its states, and what it has erased so far."""
