"""How long work says how far it is: one signature, whatever the work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as (phase, done, total) now and then, e.g. ("scan", 2048, 100000). Which phases there are, and what is counted
in each, says the function that is given it."""
