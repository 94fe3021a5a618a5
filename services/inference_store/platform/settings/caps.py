"""How much is indexed."""

from .group import Count, SettingsGroup


class CapSettings(SettingsGroup):
    """How much of one inference is indexed; what is over is kept and flagged."""

    max_metadata_bytes: Count = 1024 * 1024
    """Largest metadata blob that is read."""
    max_response_bytes: Count = 4 * 1024 * 1024
    """Largest response blob that is read."""
    max_keys_per_inference: Count = 256
    """Most metadata keys of one inference that are indexed."""
    max_keys_per_model: Count = 10_000
    """Most different metadata keys of one model that are indexed."""
    max_predictions: Count = 10_000
    """Most predictions of one inference that are indexed."""
