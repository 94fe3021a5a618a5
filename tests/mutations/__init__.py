"""Small faults put into the product, each of which a test must see."""
