"""What a view is: a query in, a page's content and its downloads out; and what all views share.

A view function has the shape ``(explorer, query, progress) -> View``. It runs on the explorer's one worker thread, so
the model is its alone while it runs: it may intervene or edit inside a block, as long as the block ends with it. What
it is asked stands in the address alone, so one user's intervention never reaches another's. Whatever the user got wrong
it raises as InputError, which the page shows below the form. Everything in ``body`` is escaped by the templates.
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
NOTHING = Markup("")


@dataclass(frozen=True)
class Download:
    """A file: its name, its media type and its content."""

    name: str
    media: str
    content: bytes


@dataclass(frozen=True)
class View:
    """A page's content.

    Attributes:
        title: of the page, plain text.
        body: below the form; begins with its conclusion.
        conclusion: one sentence, shown first and largest; may be empty.
        downloads: by format ("csv", "png", "html", "json"), each made when it is asked for, on the worker.
        styles, scripts: what the page needs besides the explorer's own, as text; admitted by their hashes.
        notes: what was warned of; the explorer adds to them.
    """

    title: str
    body: Markup
    conclusion: Markup = NOTHING
    downloads: Mapping[str, Callable[[], Download]] = field(default_factory=dict)
    styles: str = ""
    scripts: str = ""
    notes: tuple[str, ...] = ()


ViewFunction = Callable[["Explorer", Query, Progress], View]


@dataclass(frozen=True)
class Page:
    """A view's place on the site.

    Attributes:
        name: in the navigation. path: of its address.
        view: its function, run on the worker.
        form: what stands above it, filled in from the query; never fails, whatever the query holds.
        waits: what it may wait for, in words: "the causal trace".
        moved: another address that says the same better, to which a query is sent on; None where it is good as it is.
    """

    name: str
    path: str
    view: ViewFunction
    form: Callable[[Explorer, Query], Markup]
    waits: str = "the model"
    moved: Callable[[Query], str | None] = lambda _query: None


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
        self.results = Cache(24)  # views, by address
        self.made = Cache(12)  # what views share: captures, scores, tables

    def cached(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What was made for a key, or is made now. The key names what it is and all that determines it; inside an
        intervention or an edit nothing is kept."""
        if self.model.interventions or len(self.model.edits):
            return make()
        found = self.made.get(key)
        if found is None:
            found = make()
            self.made.put(key, found)
        return found

    def capture(self, prompt: str, chat: bool = False) -> Capture:
        """The model on a prompt, as it is, or as a user's message by the model's chat template.

        Raises: InputError: a long one, of which the few that are kept are large; a model without a chat template.
        """
        asked = self.model.chat_text([{"role": "user", "content": prompt}]) if chat else prompt
        length = len(self.model.tokenize(asked))
        if length > TOKENS:
            raise InputError(f"the text has {length} tokens, and at most {TOKENS} are shown here: take a part of it")
        return self.cached(("capture", prompt, chat), lambda: capture(self.model, asked))
