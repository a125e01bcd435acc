"""The view of a prompt."""

from __future__ import annotations

from markupsafe import Markup

from ..core.progress import Progress
from .queries import Query
from .views import Explorer, View


def prompt_form(explorer: Explorer, query: Query) -> Markup:
    """What stands above it."""
    return Markup("")


def prompt_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """Not there yet."""
    return View("Prompt", Markup("<p>Not there yet.</p>"))
