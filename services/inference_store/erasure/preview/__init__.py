"""What a policy would delete, what a change of it changes, and why an inference is kept."""
