"""The smoke test that any operator can run: sends one inference the whole way, and reads it
back."""
