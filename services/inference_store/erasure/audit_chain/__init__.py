"""The chain of the audit: nobody can change, remove or cut entries without being noticed.

Each entry has a link: a hash over the link before it, over what is fixed in the entry (when, who,
from where, what, of which model) and over a salted hash of its values (the inference and the
detail). So an erasure can remove the values, and the chain stays valid.
"""

from .checkpoints import (
    Sign,
    apply_checkpoint,
    find_newest_signed,
    make_checkpoint,
    prune_entries,
    unsigned,
)
from .links import link_entries, measure_unlinked
from .mentions import mentions
from .redaction import redact_mentions, redact_values
from .verdict import Verdict
from .verification import verify

__all__ = [
    "Sign",
    "Verdict",
    "apply_checkpoint",
    "find_newest_signed",
    "link_entries",
    "make_checkpoint",
    "measure_unlinked",
    "mentions",
    "prune_entries",
    "redact_mentions",
    "redact_values",
    "unsigned",
    "verify",
]
