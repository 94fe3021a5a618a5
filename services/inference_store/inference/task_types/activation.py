"""Turns raw numbers of a model into scores."""

import math

from .mapping import Activation


def activate(values: list[float | None], activation: Activation) -> list[float | None]:
    """Return the scores of one row of classes. A row with an unknown number has no softmax."""
    if activation == "sigmoid":
        return [None if value is None else _sigmoid(value) for value in values]
    if activation == "softmax":
        return _softmax(values)
    return values


def _sigmoid(value: float) -> float:
    # Use the formula whose exponential cannot overflow.
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    power = math.exp(value)
    return power / (1 + power)


def _softmax(values: list[float | None]) -> list[float | None]:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return [None] * len(values)
    highest = max(numbers)
    powers = [math.exp(value - highest) for value in numbers]
    total = sum(powers)
    return [power / total for power in powers]
