"""Which inner loops a piece of work is sooner done with: compiled ones, or NumPy's without the compiler's import."""

from __future__ import annotations

from types import ModuleType

LITTLE = 1 << 22
"""Numbers: NumPy goes through so many in a fraction of the time that importing numba takes."""


def loops_for(numbers: int) -> ModuleType:
    """The module of the loops that are sooner done with so many numbers,
    :mod:`ffnmem.vocabulary.uncompiled` or :mod:`ffnmem.vocabulary.kernels`."""
    if numbers <= LITTLE:
        from . import uncompiled

        return uncompiled
    from . import kernels

    return kernels
