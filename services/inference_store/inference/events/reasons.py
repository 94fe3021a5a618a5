"""Why an event cannot be indexed: the one list of dead-letter reasons."""

DEAD_LETTER_REASONS = {
    "not_json": "The message is not a JSON object in UTF-8.",
    "not_an_event": "A field of the nine is missing or has the wrong type.",
    "invalid_id": (
        "An id is empty, `.` or `..`, holds NUL or a lone surrogate, or is over 256 characters."
    ),
    "invalid_time": "A time is not RFC 3339.",
    "time_out_of_range": (
        "request_received_at is before 2000 or more than 24 hours after the record's time."
    ),
    "unreadable_record": "Its record batch cannot be read; the first letter of it keeps its bytes.",
    "invalid_header": "A Kafka header has a name that is not UTF-8; a redrive indexes the event.",
    "invalid_storage_key": "A storage key names no key, or a bucket or a key that is not allowed.",
    "unknown_model": "The model is not registered, and the ingester is set to refuse it.",
    "blob_missing": "A blob the index needs did not come in time.",
    "blob_forbidden": "The object store refuses a blob the index needs, and gives others.",
    "unindexable": "Postgres refuses a value of this event.",
    "message_too_large": "The message is larger than a batch may be.",
}
