"""The paths under /v1, one file a subject."""
