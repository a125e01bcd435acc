"""The view of a find."""

from __future__ import annotations

from markupsafe import Markup

from ..core.progress import Progress
from .queries import Query
from .views import Explorer, View


def find_form(explorer: Explorer, query: Query) -> Markup:
    """What stands above it."""
    return Markup("")


def find_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """Not there yet."""
    return View("Find", Markup("<p>Not there yet.</p>"))
