"""The view of a fact."""

from __future__ import annotations

from markupsafe import Markup

from ..core.progress import Progress
from .queries import Query
from .views import Explorer, View


def fact_form(explorer: Explorer, query: Query) -> Markup:
    """What stands above it."""
    return Markup("")


def fact_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """Not there yet."""
    return View("Fact", Markup("<p>Not there yet.</p>"))
