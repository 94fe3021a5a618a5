"""Thumbnails: made in processes of their own, kept in memory alone, shown while the input is there.

Nothing is imported here: the process that decodes pictures imports `worker` and the library alone.
"""
