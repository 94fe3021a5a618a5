"""Settings, in groups that a service chooses from. Every name carries INFERENCE_STORE_.

Durations are seconds and sizes are bytes, and the names say so.
"""

from inference_store.platform.settings.processes import (
    GROUPS,
    Checks,
    UnknownSetting,
    names,
    read,
    refuse_unknown,
)

from .group import (
    PREFIX,
    TLS_PARAMETERS,
    SettingsGroup,
    WrongSetting,
    check_dsn,
    presenting,
    secrets_of,
    sentences,
    trusting,
)
from .parts import (
    AdminSettings,
    BlobSettings,
    CapSettings,
    CertificateSettings,
    ConnectionSettings,
    KafkaSettings,
    LogSettings,
    PostgresSettings,
)
from .processes import (
    AccessSettings,
    ApiSettings,
    AuditSettings,
    CaptureSettings,
    IngesterSettings,
    ProxySettings,
    ReconcileSettings,
    RegistryKeySettings,
    RetentionSettings,
    RoleSettings,
    UpstreamSettings,
    is_loopback,
)

__all__ = [
    "GROUPS",
    "PREFIX",
    "TLS_PARAMETERS",
    "AccessSettings",
    "AdminSettings",
    "ApiSettings",
    "AuditSettings",
    "BlobSettings",
    "CapSettings",
    "CaptureSettings",
    "CertificateSettings",
    "Checks",
    "ConnectionSettings",
    "IngesterSettings",
    "KafkaSettings",
    "LogSettings",
    "PostgresSettings",
    "ProxySettings",
    "ReconcileSettings",
    "RegistryKeySettings",
    "RetentionSettings",
    "RoleSettings",
    "SettingsGroup",
    "UnknownSetting",
    "UpstreamSettings",
    "WrongSetting",
    "check_dsn",
    "is_loopback",
    "names",
    "presenting",
    "read",
    "refuse_unknown",
    "secrets_of",
    "sentences",
    "trusting",
]
