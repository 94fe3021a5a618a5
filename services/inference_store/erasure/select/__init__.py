"""The selection of expired inferences, and of spans of time that contain nothing else."""
