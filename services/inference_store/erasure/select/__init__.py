"""The selection of expired inferences, and of spans of time that hold nothing else."""
