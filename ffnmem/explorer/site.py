"""Which views there are, and where."""

from __future__ import annotations

from .circuit_view import circuit_form, circuit_moved, circuit_view
from .fact_view import fact_form, fact_view
from .find_view import find_form, find_view
from .home import home_view, no_form
from .memory_view import memory_form, memory_view
from .memory_view import moved as memory_moved
from .prompt_view import moved as prompt_moved
from .prompt_view import prompt_form, prompt_view
from .views import Page

HOME = Page("Start", "/", home_view, no_form)

PAGES = (
    Page("Prompt", "/prompt", prompt_view, prompt_form, "the model to read the prompt", prompt_moved),
    Page("Memory", "/memory", memory_view, memory_form, "the memory's numbers", memory_moved),
    Page("Find", "/find", find_view, find_form, "the search through all memories"),
    Page("Circuit", "/circuit", circuit_view, circuit_form, "the circuit", circuit_moved),
    Page("Fact", "/fact", fact_view, fact_form, "the fact: its trace or its rewrite"),
)
"""In the order of the navigation."""
