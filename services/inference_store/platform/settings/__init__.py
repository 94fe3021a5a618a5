"""Settings, in groups that a service chooses from. Every name carries INFERENCE_STORE_.

Durations are seconds and sizes are bytes, and the names say so.
"""

from .group import PREFIX as PREFIX
from .group import TLS_PARAMETERS as TLS_PARAMETERS
from .group import SettingsGroup as SettingsGroup
from .group import WrongSetting as WrongSetting
from .group import check_dsn as check_dsn
from .group import presenting as presenting
from .group import secrets_of as secrets_of
from .group import sentences as sentences
from .group import trusting as trusting
from .parts import AdminSettings as AdminSettings
from .parts import BlobSettings as BlobSettings
from .parts import CertificateSettings as CertificateSettings
from .parts import ConnectionSettings as ConnectionSettings
from .parts import KafkaSettings as KafkaSettings
from .parts import LogSettings as LogSettings
from .parts import PostgresSettings as PostgresSettings
from .processes import GROUPS as GROUPS
from .processes import AccessSettings as AccessSettings
from .processes import ApiSettings as ApiSettings
from .processes import CaptureSettings as CaptureSettings
from .processes import Checks as Checks
from .processes import IngesterSettings as IngesterSettings
from .processes import ProxySettings as ProxySettings
from .processes import ReconcileSettings as ReconcileSettings
from .processes import RegistryKeySettings as RegistryKeySettings
from .processes import ReplaySettings as ReplaySettings
from .processes import RetentionSettings as RetentionSettings
from .processes import RoleSettings as RoleSettings
from .processes import UpstreamSettings as UpstreamSettings
from .processes import is_loopback as is_loopback
from .processes import list_unknown as list_unknown
from .processes import names as names
from .processes import read as read
