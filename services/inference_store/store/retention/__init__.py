"""Retention: what may be kept how long, what is being erased, and what has been."""
