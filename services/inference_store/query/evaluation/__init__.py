"""How right a model was, by what is true of its inferences: `run.evaluate` answers."""
