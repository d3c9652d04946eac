"""Student's t distribution, for intervals over few sequences."""

from __future__ import annotations

import math

__all__ = ["student_quantile", "student_tail"]


def student_tail(t: float, degrees: int) -> float:
    """Return P(T > t)."""
    if math.isnan(t):
        return 1.0
    if t < 0:
        return 1.0 - student_tail(-t, degrees)
    if math.isinf(t):
        return 0.0
    return 0.5 * _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def student_quantile(tail: float, degrees: int) -> float:
    """Return t with P(T > t) = ``tail``, for a tail of at most 0.5."""
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > tail and high < 1e9:  # noqa: PLR2004
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > tail else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction (modified Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(abs(1 - (a + b) * x / (a + 1)), tiny)
    fraction = d
    for m in range(1, 10_000):
        for even in (True, False):
            if even:
                term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
            else:
                term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
            d = 1.0 / _away(1 + term * d, tiny)
            c = _away(1 + term / c, tiny)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:  # noqa: PLR2004
            break
    return front * fraction / a


def _away(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
