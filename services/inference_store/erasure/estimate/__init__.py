"""The dry run of an erasure: an estimate of what it would remove, which changes nothing."""
