"""The real api, whose exports the readers read."""

from tests.integration.api.conftest import (  # noqa: F401
    blobs,
    forget_apps,
    make_app,
    patient_exports,
    settings,
)
