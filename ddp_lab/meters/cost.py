"""What a message costs: a time for each, and a time for each byte, fitted to times that were measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from numbers import Complex, Real
from typing import NamedTuple

from ddp_lab.errors import InputError


class Cost(NamedTuple):
    """time = alpha + beta * size: `alpha` in seconds, `beta` in seconds per byte.

    alpha is the latency, what a message costs whatever its size; 1 / beta is the bandwidth, in bytes per second. At
    alpha / beta bytes both parts are equal. The model is that of R. W. Hockney, The communication challenge for MPP:
    Intel Paragon and Meiko CS-2, Parallel Computing 20 (1994), 389-398; with the collectives that are built on it:
    R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, International
    Journal of High Performance Computing Applications 19 (2005), 49-66.
    """

    alpha: float
    beta: float

    def seconds(self, size: float, rounds: float = 1) -> float:
        """The time of so many rounds, one after the other, that carry `size` bytes in all."""
        return self.alpha * rounds + self.beta * size


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Cost:
    """The straight line through these times that has the smallest relative errors: `sizes` in bytes, one for each time.

    Least squares of (alpha + beta * size) / time - 1, with neither of the two below 0. Relative, for with the absolute
    errors the largest messages alone would decide, and the latency would be lost among them. Give the best of several
    tries for each size: what disturbs a measurement makes it longer.

    InputError unless there are two sizes at least that differ, and a time above 0 for each.
    """
    sizes, seconds = _floats("sizes", sizes), _floats("seconds", seconds)
    if len(sizes) != len(seconds):
        raise InputError(f"fit(): {len(sizes)} sizes and {len(seconds)} times. Give a time for each size.")
    if wrong := [time for time in seconds if not (time > 0 and math.isfinite(time))]:
        raise InputError(f"fit(): a time of {wrong[0]} s cannot be fitted. Times are numbers above 0.")
    if wrong := [size for size in sizes if not (size >= 0 and math.isfinite(size))]:
        raise InputError(f"fit(): a size of {wrong[0]} bytes cannot be fitted. Sizes are numbers, 0 or more.")
    if len(set(sizes)) < 2:
        there = f"is {sizes[0]:g} alone" if sizes else "are 0"
        raise InputError(f"fit(): a line needs two sizes at least, and there {there}.")
    try:
        cost = _line(sizes, seconds)
    except ArithmeticError:
        cost = Cost(math.nan, math.nan)
    if not all(map(math.isfinite, cost)):
        raise InputError(
            f"fit(): times of {min(seconds)} to {max(seconds)} s and sizes of {min(sizes)} to {max(sizes)} bytes leave "
            "the range of floats. Give bytes and seconds as they were measured."
        )
    return cost


def _floats(name, given):
    """These as floats, where each is a number: no text, though float() would read it, and nothing with parts."""
    try:
        values = list(given)
        if any(isinstance(value, (str, bytes)) or _is_complex(value) for value in (given, *values)):
            raise TypeError
        if any(getattr(value, "ndim", 0) for value in values):
            raise TypeError
        return [float(value) for value in values]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's, for complex tensors
        what = f"{name}={given!r:.60}"
        raise InputError(f"fit(): {what} is no list of numbers. Give fit([bytes, ...], [seconds, ...]).") from None


def _is_complex(value):
    return isinstance(value, Complex) and not isinstance(value, Real)


def _line(sizes, seconds):
    """The Cost that fits best."""
    rows = [(1 / time, size / time) for size, time in zip(sizes, seconds, strict=True)]  # alpha a + beta b = 1
    # The normal equations, solved by Cramer's rule; each determinant as a sum over pairs, for as a difference of
    # products it loses its digits where sizes are far apart.
    pairs = [(a - c, d - b, a * d - b * c) for (a, b), (c, d) in itertools.combinations(rows, 2)]
    whole = sum(area**2 for _, _, area in pairs)
    alpha, beta = sum(b * area for _, b, area in pairs) / whole, sum(a * area for a, _, area in pairs) / whole
    if alpha < 0:
        return Cost(0.0, sum(b for _, b in rows) / sum(b * b for _, b in rows))
    if beta < 0:
        return Cost(sum(a for a, _ in rows) / sum(a * a for a, _ in rows), 0.0)
    return Cost(alpha, beta)
