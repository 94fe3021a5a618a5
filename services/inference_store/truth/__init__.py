"""Ground truth: what is true of inferences, as people and other sources say."""
