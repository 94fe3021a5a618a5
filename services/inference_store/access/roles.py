"""The grants of the roles in an issuer's tokens, as the settings define them."""

from pydantic import TypeAdapter, ValidationError

from inference_store.access.rights import Grant, Grants
from inference_store.platform.settings import RoleSettings, WrongSetting, sentences


def read_roles(settings: RoleSettings) -> dict[str, tuple[Grant, ...]]:
    """Return the grants of each role. Raise WrongSetting, with a line for each that is wrong."""
    try:
        return TypeAdapter(dict[str, Grants]).validate_python(settings.oidc_roles)
    except ValidationError as wrong:
        raise WrongSetting("\n".join(sentences(wrong, "oidc_roles"))) from None
