"""How fast questions are answered, over a population of any size: pages, counts, look-ups."""
