"""Who works on the command line, as the audit and the ledger name them."""

import getpass


def cli_user() -> str:
    """The user's name; `unknown` for an id without one, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
