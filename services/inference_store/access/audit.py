"""The actions of the audit, and their actors. `ACTIONS` is the one list."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Action(StrEnum):
    """What was done."""

    MODEL_REGISTERED = "model_registered"
    MODEL_CHANGED = "model_changed"
    MODEL_MOVED = "model_moved"
    MODEL_REMOVED = "model_removed"
    POLICY_SET = "policy_set"
    POLICY_REMOVED = "policy_removed"
    POLICY_REVOKED = "policy_revoked"
    RETENTION_REQUESTED = "retention_requested"
    HOLD_PLACED = "hold_placed"
    HOLD_CHANGED = "hold_changed"
    HOLD_RELEASED = "hold_released"
    RECONCILIATION_REQUESTED = "reconciliation_requested"
    METADATA_CHANGED = "metadata_changed"
    INFERENCE_ERASED = "inference_erased"
    ERASURE_REQUESTED = "erasure_requested"
    ERASURE_CANCELLED = "erasure_cancelled"
    ERASURE_REST_GIVEN_UP = "erasure_rest_given_up"
    DATA_READ = "data_read"
    METADATA_READ = "metadata_read"
    LINKS_MADE = "links_made"
    THUMBNAILS_READ = "thumbnails_read"
    EXPORT_REQUESTED = "export_requested"
    EXPORT_CANCELLED = "export_cancelled"
    EXPORT_READ = "export_read"
    DEAD_LETTER_READ = "dead_letter_read"
    DEAD_LETTER_REDRIVEN = "dead_letter_redriven"
    DEAD_LETTERS_REDRIVEN = "dead_letters_redriven"
    DEAD_LETTER_DISCARDED = "dead_letter_discarded"
    PARKED_RETRIED = "parked_retried"
    PARKED_DISCARDED = "parked_discarded"
    KEY_CREATED = "key_created"
    KEY_ROTATED = "key_rotated"
    KEY_REVOKED = "key_revoked"
    KEY_CONFIRMED = "key_confirmed"
    VIEW_SAVED = "view_saved"
    VIEW_CHANGED = "view_changed"
    VIEW_DELETED = "view_deleted"
    SESSION_STARTED = "session_started"
    SESSION_ENDED = "session_ended"
    AUDIT_VALUES_TAKEN = "audit_values_taken"
    CERTIFICATES_BEGUN_ANEW = "certificates_begun_anew"
    LIMIT_LIFTED = "limit_lifted"


ACTIONS: Final[dict[Action, str]] = {
    Action.MODEL_REGISTERED: "A model was registered through the api.",
    Action.MODEL_CHANGED: "What is said of a model was replaced.",
    Action.MODEL_MOVED: "A model was put into another project; `detail` says from when it counts.",
    Action.MODEL_REMOVED: "A registration was removed.",
    Action.POLICY_SET: "A retention policy was set; `detail` has its rules.",
    Action.POLICY_REMOVED: "A retention policy was removed.",
    Action.POLICY_REVOKED: "A retention policy that waited to begin was taken back.",
    Action.RETENTION_REQUESTED: "A run of retention was asked for.",
    Action.HOLD_PLACED: "A legal hold was placed; `detail` has its id.",
    Action.HOLD_CHANGED: "Another legal hold was put in the place of one, under its id.",
    Action.HOLD_RELEASED: "A legal hold was released; `detail` says why.",
    Action.RECONCILIATION_REQUESTED: "A comparison of bucket and index was asked for, or a repair.",
    Action.METADATA_CHANGED: "Metadata of an inference were added or changed.",
    Action.INFERENCE_ERASED: "The erasure of an id was asked for; a row for each inference.",
    Action.ERASURE_REQUESTED: "An erasure by a filter, ids or a subject was asked for.",
    Action.ERASURE_CANCELLED: "An erasure was cancelled before it deleted anything.",
    Action.ERASURE_REST_GIVEN_UP: "What holds keep of an erasure was given up; `detail` says why.",
    Action.DATA_READ: "A data blob was read through the api.",
    Action.METADATA_READ: "A metadata blob, which may hold the request, was read.",
    Action.LINKS_MADE: "Presigned links to an inference's blobs were given out.",
    Action.THUMBNAILS_READ: "Thumbnails of inputs were read; `detail` lists whose.",
    Action.EXPORT_REQUESTED: "An export was requested; `detail` has its id, and its `blobs`.",
    Action.EXPORT_CANCELLED: "An export was cancelled, or its parts were deleted.",
    Action.EXPORT_READ: "Links to parts of an export were given out, or one was downloaded.",
    Action.DEAD_LETTER_READ: "The bytes of a dead letter were read.",
    Action.DEAD_LETTER_REDRIVEN: "A dead letter was given to the ingesters again.",
    Action.DEAD_LETTERS_REDRIVEN: "Several were; `detail` says which were chosen, and how many.",
    Action.DEAD_LETTER_DISCARDED: "A dead letter was discarded, with the reason.",
    Action.PARKED_RETRIED: "Parked events were made due; `detail` says which, and how many.",
    Action.PARKED_DISCARDED: "A parked event became a discarded dead letter, with the reason.",
    Action.KEY_CREATED: "An API key was made.",
    Action.KEY_ROTATED: "An API key got a new text.",
    Action.KEY_REVOKED: "An API key was revoked.",
    Action.KEY_CONFIRMED: "A key that only a restored backup had was confirmed.",
    Action.VIEW_SAVED: "A view of a model was saved; `detail` has its id.",
    Action.VIEW_CHANGED: "A saved view was changed.",
    Action.VIEW_DELETED: "A saved view was deleted.",
    Action.SESSION_STARTED: "Somebody signed in to the console.",
    Action.SESSION_ENDED: "Somebody signed out of the console.",
    Action.AUDIT_VALUES_TAKEN: "An erasure took the values of entries; `detail` lists them.",
    Action.CERTIFICATES_BEGUN_ANEW: "A key went on with certificates that no key before it signed.",
    Action.LIMIT_LIFTED: "Ingesters that halted were resumed; `detail` says until when.",
}


@dataclass(frozen=True, slots=True)
class Who:
    """The actor of an action, and the client's address, which is None on the command line."""

    actor: str
    client: str | None
