"""The first page: what is loaded, and where to begin."""

from __future__ import annotations

from markupsafe import Markup

from ..core.progress import Progress
from .queries import Query
from .rendering import fragment
from .views import Explorer, View

SHOWN = 8  # facts to begin with


def no_form(_explorer: Explorer, _query: Query) -> Markup:
    """None."""
    return Markup("")


def home_view(explorer: Explorer, _query: Query, _progress: Progress) -> View:
    """What is loaded, and where to begin."""
    step = max(1, len(explorer.facts) // SHOWN)
    body = fragment(
        "home.html",
        model=explorer.model,
        store=explorer.store,
        facts=explorer.facts[::step][:SHOWN],
        n_facts=len(explorer.facts),
        source=explorer.source,
    )
    return View("The memories of " + explorer.model.name, body)
