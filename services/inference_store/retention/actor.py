"""The name under which retention writes to the ledger."""

from typing import Final

ACTOR: Final = "retention"
