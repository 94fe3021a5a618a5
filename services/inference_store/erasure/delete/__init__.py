"""The deletion of marked inferences: their rows, and their part of shared metadata."""
