"""An answer that ends unfinished: the server closes the connection."""


class UnfinishedError(Exception):
    """The answer cannot be finished: the client does not read, or its format cannot say why."""
