"""Sums that do not depend on the order of adding: fixed-point integers in three limbs.

A float64 is split without loss (down to 2⁻⁶⁴) into integers of units 2¹⁶, 2⁻²⁴ and 2⁻⁶⁴. Integer addition is
associative and commutative, so shards, batches and restarts give the same bytes in any order. Range ±2⁷⁸: over 10²³.
"""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
from jaxtyping import Float64, Int64

from ..core.errors import InputError

LIMBS = 3
BITS = 40  # of the two lower limbs
UNIT = 64  # the lowest limb counts 2⁻⁶⁴
LARGEST = 2.0**77  # of one addend
FULL = 1 << 62  # a limb that reaches it might wrap around at the next addition

SMALL_UNIT = 25  # of the single-limb sums: 2⁻²⁵, range 2³⁷
SMALL_LARGEST = 2.0**36


@numba.njit(cache=True, nogil=True, error_model="numpy")
@no_type_check  # a run-time checker's wrapper would be compiled in its place
def _accumulate(low: np.ndarray, middle: np.ndarray, high: np.ndarray, addends: np.ndarray) -> None:
    mask = np.int64((1 << 40) - 1)
    for i in range(addends.size):
        value = addends[i]
        # Towards zero: what is left of a small negative number would not fit a float64 above it.
        top = np.trunc(value * 2.0**-16)
        rest = value - top * 2.0**16
        mid = np.trunc(rest * 2.0**24)
        bottom = np.rint((rest - mid * 2.0**-24) * 2.0**64)
        total = low[i] + np.int64(bottom)
        low[i] = total & mask
        total = middle[i] + np.int64(mid) + (total >> 40)
        middle[i] = total & mask
        high[i] += np.int64(top) + (total >> 40)


def add(limbs: Int64[np.ndarray, "limbs ..."], addends: Float64[np.ndarray, "..."], what: str) -> None:
    """Add float64 numbers in place; raises InputError for NaN, infinity, or a number or a sum beyond the range."""
    if not np.all(np.abs(addends) < LARGEST):
        raise InputError(f"{what}: a sum of {addends[~(np.abs(addends) < LARGEST)].flat[0]} is no usable number")
    flat = limbs.reshape(LIMBS, -1)
    _accumulate(flat[0], flat[1], flat[2], np.ascontiguousarray(addends).reshape(-1))
    check_room(flat[2], what)


def check_room(limb: Int64[np.ndarray, "..."], what: str) -> None:
    """Raise InputError before an integer wraps around and a sum changes its sign."""
    if limb.size and max(int(limb.max()), -int(limb.min())) >= FULL:
        raise InputError(f"{what}: its sums over this much text are beyond what they can hold")


def merged(
    first: Int64[np.ndarray, "limbs ..."], second: Int64[np.ndarray, "limbs ..."]
) -> Int64[np.ndarray, "limbs ..."]:
    """The sum of two sums, with its carries settled, so that equal numbers have equal limbs."""
    result = first + second
    mask = (1 << BITS) - 1
    result[1] += result[0] >> BITS
    result[0] &= mask
    result[2] += result[1] >> BITS
    result[1] &= mask
    return result


def as_integers(limbs: Int64[np.ndarray, "limbs ..."]) -> np.ndarray:
    """Python integers in units of 2⁻⁶⁴: exact, whatever their size."""
    low, middle, high = (limb.astype(object) for limb in limbs)
    return low + (middle << BITS) + (high << 2 * BITS)


@numba.njit(cache=True, nogil=True, error_model="numpy")
@no_type_check
def _accumulate_small(sums: np.ndarray, addends: np.ndarray, unit: float, largest: float, full: int) -> bool:
    usable = True
    for i in range(addends.size):
        usable &= abs(addends[i]) < largest
        sums[i] += np.int64(np.rint(addends[i] * unit))
        usable &= abs(sums[i]) < full
    return usable


def add_small(sums: Int64[np.ndarray, "..."], addends: Float64[np.ndarray, "..."], what: str) -> None:
    """Add float64 numbers to single-limb sums, each rounded to 2⁻²⁵; raises InputError beyond
    2³⁶, or where a sum reaches 2³⁷."""
    usable = _accumulate_small(sums.reshape(-1), addends.reshape(-1), 2.0**SMALL_UNIT, SMALL_LARGEST, FULL)
    if not usable:
        if np.all(np.abs(addends) < SMALL_LARGEST):
            check_room(sums, what)
        raise InputError(f"{what}: a sum of {addends[~(np.abs(addends) < SMALL_LARGEST)].flat[0]} is no usable number")


def small_as_floats(sums: Int64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    return sums / 2.0**SMALL_UNIT
