"""The view of a memory."""

from __future__ import annotations

from markupsafe import Markup

from ..core.progress import Progress
from .queries import Query
from .views import Explorer, View


def memory_form(explorer: Explorer, query: Query) -> Markup:
    """What stands above it."""
    return Markup("")


def memory_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """Not there yet."""
    return View("Memory", Markup("<p>Not there yet.</p>"))
