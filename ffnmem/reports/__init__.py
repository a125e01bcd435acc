"""HTML: the report of one prompt, and what notebooks show of results."""

from .report import report as report

__all__ = ["report"]
