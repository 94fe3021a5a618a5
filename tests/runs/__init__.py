"""How a run of the tests is carried out and reported: shared servers, durations, failures."""
