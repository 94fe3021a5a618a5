"""Retention policies."""

from datetime import datetime

from .fields import Shown


class ShownRule(Shown):
    """How long the input and the whole inference are kept."""

    name: str | None = None
    keep_input: str
    keep_inference: str


class ShownPolicy(Shown):
    """A model's retention policy."""

    model_id: str
    rules: list[ShownRule]
    revision: int
    updated_at: datetime
