"""What a stream of all inferences costs in each format, and what another caller notices."""
