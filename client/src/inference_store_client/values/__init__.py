"""What the API answers, as frozen dataclasses; a test compares each with the OpenAPI."""
