"""The smoke test that any operator can run: one inference goes the whole way, and is read back."""
