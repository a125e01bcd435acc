"""The first page: what is loaded, and where to begin."""

from __future__ import annotations

from ..core.progress import Progress
from .queries import Query
from .rendering import fragment
from .views import Explorer, View, view

SHOWN = 8  # facts to begin with


@view("Start", Query)
def home_page(explorer: Explorer, _query: Query, _progress: Progress) -> View:
    """What is loaded, and where to begin."""
    step = max(1, len(explorer.facts) // SHOWN)
    body = fragment("home.html", explorer=explorer, facts=explorer.facts[::step][:SHOWN])
    return View("The memories of " + explorer.model.name, body)
