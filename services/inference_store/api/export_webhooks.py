"""Checks the webhook of a request for an export: nothing but what the operator lists is called."""

from dataclasses import dataclass

from inference_store.inference.errors import Fault, Invalid
from inference_store.platform.settings import ExportWebhookSettings, read_origin


@dataclass(frozen=True, slots=True)
class RequestedWebhook:
    """A URL that may be sent to, and its origin."""

    url: str
    origin: str


def read_webhook(settings: ExportWebhookSettings, url: str | None) -> RequestedWebhook | None:
    """Return the webhook of a request. Raises Invalid, without the URL in the text."""
    if url is None:
        return None
    try:
        origin = read_origin(url)
    except ValueError as error:
        raise _refuse(str(error)) from None
    if origin not in settings.webhook_origins:
        raise _refuse(
            f"{origin} is not in INFERENCE_STORE_EXPORT_WEBHOOK_ORIGINS: an operator lists there"
            " where webhooks may go"
        )
    return RequestedWebhook(url, origin)


def _refuse(message: str) -> Invalid:
    return Invalid(f"webhook: {message}.", faults=[Fault("webhook", message)])
