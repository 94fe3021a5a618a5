"""The user of the command line, as the audit and the ledger name them."""

import getpass


def find_cli_user() -> str:
    """Return the user's name; `unknown` for an id without one, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
