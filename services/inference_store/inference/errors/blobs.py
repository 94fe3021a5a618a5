"""Errors of an object store that are returned instead of an object."""


class BlobMissing(Exception):
    """The object store has no object by this key (its bucket exists)."""


class BlobUnreadable(BlobMissing):
    """The object may well be there, and is not given: archived, or by a key that is refused."""


class BlobForbidden(Exception):
    """The object store refuses this one object, and gives others of its bucket."""


class BlobTooLarge(Exception):
    """The object is over the cap for its kind; it stays where it is and is not indexed."""


class ObjectStoreUnavailable(Exception):
    """The object store or the bucket cannot be reached: wait, lose nothing."""


class AccessDenied(ObjectStoreUnavailable):
    """The object store says 403: to this object or to all, which it does not tell apart."""
