"""Settings, in groups that a service chooses from. Every name carries INFERENCE_STORE_.

Durations are seconds and sizes are bytes, and the names say so.
"""

from .access import AccessSettings, AuditSettings, RoleSettings, is_loopback
from .admin import AdminSettings
from .api import ApiSettings
from .blobs import BlobSettings
from .caps import CapSettings
from .certificates import CertificateSettings
from .checked_settings import Checks, read
from .connections import ConnectionSettings
from .dsn import TLS_PARAMETERS, check_dsn
from .errors import sentences
from .group import PREFIX, SettingsGroup
from .ingester import IngesterSettings
from .kafka import KafkaSettings
from .logs import LogSettings
from .names import GROUPS, UnknownSetting, names, refuse_unknown
from .postgres import PostgresSettings
from .proxy import CaptureSettings, ProxySettings, RegistryKeySettings, UpstreamSettings
from .reconcile import ReconcileSettings
from .retention import RetentionSettings
from .secret_files import WrongSetting, secrets_of
from .tls_files import presenting, trusting

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
