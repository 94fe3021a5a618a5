"""Errors between services, which no caller sees."""


class InvalidEvent(Exception):
    """A Kafka message that can never be indexed: it becomes a dead letter.

    `reason` is one of `events.reasons.DEAD_LETTER_REASONS`; `detail` is for people.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        model_id: str | None = None,
        inference_id: str | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.model_id = model_id
        self.inference_id = inference_id


class SchemaBehind(Exception):
    """The database's schema is older than what this version needs. Ends a service at its start."""
