"""Inferences as columns: which there are, their types, and the formats that they are written in."""
