"""What a view is: a query in, a page's content and its files out; and what all views share.

A view runs on the explorer's one worker thread, so the model is its alone while it runs: it may intervene or edit
inside a block, as long as the block ends with it. What it is asked stands in the address alone, so one user's
intervention never reaches another's. Whatever the user got wrong it raises as InputError, which the page shows below
the form. Everything in ``body`` is escaped by the templates.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from markupsafe import Markup

from ..core.errors import InputError
from ..core.progress import Progress
from ..editing.moments import SecondMoment
from ..facts.fact import Fact
from ..models.model import Model
from ..prompts.captures import Capture, capture
from ..scanning.store import Store
from .queries import Query

TOKENS = 160  # of a prompt: a map of more is not looked at

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class View:
    """A page's content.

    Attributes:
        title: of the page, plain text.
        body: below the form; begins with one sentence, the conclusion.
        name: of its files. provenance: of its numbers.
        files: by format, what is made when the file is asked for, on the worker: a table ("csv"), plain values
            ("json"), a figure ("png"), a page ("html"; else what is shown), bytes ("zip").
        notes: what was warned of; the explorer adds to them.
    """

    title: str
    body: Markup
    name: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A view's place on the site.

    Attributes:
        name: in the navigation. query: the parameters of its address.
        make: the view, from the explorer, a query and a progress.
        waits: what it may wait for, in words: "the circuit".
        buttons: of its form: what is on them, and a parameter's name and value that each sends.
        choices: by field, the values that depend on the explorer, in words; of a field without any nothing is shown.
        links: what stands beside the buttons, by the explorer and the query's values as typed; never fails.
    """

    name: str
    query: type[Query]
    make: Callable[[Explorer, Any, Progress], View]
    waits: str
    buttons: Sequence[tuple[str, str, str]]
    choices: Callable[[Explorer], Mapping[str, Mapping[str, str]]]
    links: Callable[[Explorer, Mapping[str, Sequence[str]]], Markup]

    @property
    def path(self) -> str:
        return self.query.path

    @property
    def folded(self) -> list[str]:
        """The fields among its form's settings."""
        looks = {name: field.json_schema_extra for name, field in self.query.model_fields.items()}
        return [name for name, look in looks.items() if isinstance(look, dict) and look["folded"]]


def view(
    name: str,
    query: type[Query],
    waits: str = "the model",
    *,
    buttons: Sequence[tuple[str, str, str]] = (),
    choices: Callable[[Explorer], Mapping[str, Mapping[str, str]]] = lambda _explorer: {},
    links: Callable[[Explorer, Mapping[str, Sequence[str]]], Markup] = lambda _explorer, _typed: Markup(""),
) -> Callable[[Callable[[Explorer, Any, Progress], View]], Page]:
    """Make the page of a view function, whose query and whose result say all else."""
    return lambda make: Page(name, query, make, waits, buttons, choices, links)


class Cache:
    """The last few of something that is slow to make, by all that determines it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """What is kept; None where nothing is."""
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
            return self.kept.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        with self.lock:
            self.kept[key] = value
            self.kept.move_to_end(key)
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)


class Explorer:
    """What the views look at: one model, a store of its neurons if there is one, and facts.

    Args:
        model: from :func:`ffnmem.load`; never changed but inside a request.
        store: of a scan of that model.
        facts: to choose from.
        source: where the facts are from.
        moment: the second moment to edit with; None for the one that ships with the model, if there is one.

    Raises: InputError: a store of another model.
    """

    def __init__(
        self,
        model: Model,
        store: Store | None = None,
        facts: Sequence[Fact] = (),
        source: str = "",
        moment: SecondMoment | None = None,
    ) -> None:
        if store is not None:
            store.check_model(model)
        self.model, self.store, self.facts, self.source = model, store, tuple(facts), source
        self.moment = moment
        self.fingerprint = model.fingerprint  # hashed here, not while somebody waits
        self.results = Cache(24)  # views, by page and query
        self.made = Cache(12)  # what views share: captures, scores, tables

    @property
    def example(self) -> str:
        """A text to begin with."""
        return self.facts[0].text if self.facts else "The Eiffel Tower is located in the city of"

    def cached(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What was made for a key, or is made now. The key names what it is and all that determines it; inside an
        intervention or an edit nothing is kept."""
        if self.model.interventions or len(self.model.edits):
            return make()
        kept = self.made.get(key)
        if kept is None:
            kept = make()
            self.made.put(key, kept)
        return kept

    def capture(self, prompt: str, chat: bool = False) -> Capture:
        """The model on a prompt, as it is, or as a user's message by the model's chat template.

        Raises: InputError: a long one, of which the few that are kept are large; a model without a chat template.
        """
        text = self.model.chat_text([{"role": "user", "content": prompt}]) if chat else prompt
        length = len(self.model.tokenize(text))
        if length > TOKENS:
            raise InputError(f"the text has {length} tokens, and at most {TOKENS} are shown here: take a part of it")
        return self.cached(("capture", prompt, chat), lambda: capture(self.model, text))
