"""The chain over the audit: who wrote what cannot be changed, removed or cut without being seen.

Each entry has a link: a hash over the link before, over what is fixed in the entry (when, who, from
where, what, of which model) and over a salted hash of its values (the inference and the detail).
So an erasure can take the values, and the chain still closes.
"""

from .checkpoints import Sign, apply_checkpoint, due, newest_signed, prune, unsigned
from .linking import link, unlinked
from .mentioning import mentions
from .taking import forget, forget_mentions
from .verdict import Fault, Verdict
from .verifying import verify

__all__ = [
    "Fault",
    "Sign",
    "Verdict",
    "apply_checkpoint",
    "due",
    "forget",
    "forget_mentions",
    "link",
    "mentions",
    "newest_signed",
    "prune",
    "unlinked",
    "unsigned",
    "verify",
]
