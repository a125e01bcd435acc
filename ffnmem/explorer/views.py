"""Views: operations of the command line as pages. Each has a form of what is typed for it, and shows its result."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import quote, urlencode

from cyclopts import App, CycloptsError
from markupsafe import Markup

from ..cli.commands import drawn, parser
from ..cli.guard import explain
from ..cli.makers import read_capture
from ..cli.operations import NEURONS, Operation, Parameter, operation
from ..cli.table import GROUPS, OPERATIONS, SELDOM
from ..core import types
from ..core.errors import FfnmemError, FfnmemWarning, InputError, OutOfRangeError, bounded, check_choice
from ..core.neuron_names import read_neuron
from ..core.pictures import picture
from ..core.progress import Progress
from ..core.provenance import experts_in
from ..facts.fact import Fact
from ..models.model import Model
from ..pages.rendering import Section, picture_source, split_sheet, without_origin, without_verdict
from ..scanning.store import Store
from ..show.notebook import Links
from ..show.result import Result

OF_WORDS = ("", "Capture", "NeuronChanges", "Fact")
"""Classes whose makers need words alone, and what needs no maker. Others name files, and nothing that is typed on a
page opens or writes one: an operation that needs one is no view."""
SLOW = frozenset({"health", "polysemanticity"})
"""Operations of words alone that are no views either: they take minutes."""
TOKENS = 160  # of a prompt: a map of more is not looked at
LISTED, MOST = 20, 1000  # rows of each table
BEGINNINGS = 24  # facts on the first page
Typed = Mapping[str, Sequence[str]]
"""The parameters of an address as typed, without those that are empty."""
JOINED = ("neurons", "neuron", "firings", "changes")
"""Kinds of which several are typed in one field, with commas between them."""


@dataclass(frozen=True)
class View:
    """An operation on a page. ``fields``: what is typed for it; ``example``: what its first example types."""

    name: str
    operation: Operation
    fields: tuple[Parameter, ...]
    example: Typed

    @property
    def often(self) -> bool:
        """Whether it stands above every page, as in ffnmem --help; the first page lists all."""
        return self.name not in SELDOM

    @property
    def required(self) -> list[Parameter]:
        return [one for one in self.fields if one.required]

    @property
    def first(self) -> list[Parameter]:
        """The fields that stand before its settings."""
        return [one for one in self.fields if one.by_place or one.kind.name == "token"]

    def address(self, typed: Typed) -> str:
        """Where its page for what is typed stands; other views' fields are left out."""
        names = [one.typed_as for one in self.fields] + ["top", "full"]
        pairs = [(name, value) for name in names for value in typed.get(name, ())]
        return f"/{self.name}" + (f"?{urlencode(pairs, quote_via=quote)}" if pairs else "")

    def field_of(self, *kinds: str) -> str:
        """The first field of some kinds."""
        return next((one.typed_as for one in self.fields if one.kind.name in kinds), "")


@dataclass(frozen=True)
class Question:
    """What an address asks: the words of a command line, and what they mean. Equal ones have equal words."""

    view: View
    words: tuple[str, ...]
    values: Mapping[str, Any]
    top: int
    full: bool

    @property
    def key(self) -> Hashable:
        return self.view.name, self.words


@dataclass(frozen=True)
class Shown:
    """A result as a page shows it. ``sections``: those of each column; ``notes``: what was warned of."""

    result: Result
    verdict: Any
    sections: tuple[list[Section], list[Section]]
    picture: str
    notes: tuple[str, ...]

    @property
    def provenance(self) -> Mapping[str, Any]:
        origin = getattr(self.result, "provenance", {})
        return origin if isinstance(origin, Mapping) else origin.to_dict()

    @property
    def drawn(self) -> bool:
        return type(self.result).__name__ in drawn()


def read_views(given: Mapping[str, Any], left_out: Collection[str] = ()) -> dict[str, View]:
    """The operations that are views: they are about what is loaded, words are all that they need besides, and what they
    give declares what of it is shown. ``left_out``: fields that this model has not."""
    found = {}
    for name, path in OPERATIONS.items():
        one = operation(path)
        fields = tuple(part for part in sorted(one.typed(given), key=lambda part: not part.by_place))
        words = tuple(
            part
            for part in fields
            if part.of in OF_WORDS
            and not part.kind.name.endswith(("path", "_file", "_folder"))
            and part.name not in left_out
        )
        loaded = any(part.kind.name in (*given, *OF_WORDS[1:]) for part in one.parameters)
        if loaded and name not in SLOW and all(part in words for part in fields if part.required) and gives_tables(one):
            found[name] = View(name, one, words, read_example(one, words))
    return found


def gives_tables(one: Operation) -> bool:
    """Whether its result declares what of it is shown."""
    function = one.load()
    names = {part.rpartition(".")[2] for part in one.returns.split(" | ")}
    return function is not None and any(kind.tables for kind in results(Result) if kind.__name__ in names)


def results(kind: type[Result]) -> Iterator[type[Result]]:
    for one in kind.__subclasses__():
        yield one
        yield from results(one)


def read_example(one: Operation, fields: Sequence[Parameter]) -> Typed:
    """What its first example types into its fields."""
    lines = "\n".join(one.examples).partition("$ ")[2].partition("\n$")[0].replace("\\\n", " ")
    words, found = shlex.split(lines.partition("|")[0])[2:], dict[str, list[str]]()
    places = [part for part in fields if part.by_place]
    names = {f"--{part.name.replace('_', '-')}": part for part in fields if not part.by_place}
    while words:
        word = words.pop(0)
        if word in names:
            switch = names[word].kind.name == "bool"
            found.setdefault(names[word].name, []).append("1" if switch else words.pop(0))
        elif not word.startswith("--") and places:
            part = places[0] if len(places) == 1 or several(places[0]) else places.pop(0)
            found.setdefault(part.typed_as, []).append(word)
        elif words and word.startswith("--"):
            words.pop(0)
    return found


def several(one: Parameter) -> bool:
    """Whether several may be typed, each by itself."""
    return (one.kind.many or one.kind.name == "tokens") and one.kind.name not in JOINED


def choices_of(one: Parameter) -> tuple[str, ...]:
    """The values that it may have, where they are few."""
    if one.kind.name == "bool":
        return () if one.default in ("", "False") else ("yes", "no")
    alias = getattr(types, "LensName" if one.kind.name == "lens" else one.kind.name, None)
    return tuple(map(str, one.kind.choices or (get_args(alias) if get_origin(alias) is Literal else ())))


TICK = Markup(
    '<input type="checkbox" name="changes" value="{0[0]}.{0[1]}=0" form="change" '
    'aria-label="switch {0[0]}.{0[1]} off"> '
)
"""Of a neuron: what chooses it to be switched off."""

Kept = TypeVar("Kept")


class Cache:
    """The latest few of something that is slow to make, by all that determines it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: dict[Hashable, Any] = {}

    def put(self, key: Hashable, value: Kept) -> Kept:
        self.kept[key] = value
        for old in list(self.kept)[: -self.most]:
            del self.kept[old]
        return value


def shared(view: View, other: View, typed: Typed) -> Typed:
    """What is typed for a view and means the same for another, one neuron whatever its field is called."""
    names = [one.typed_as for one in other.fields if one.name == "prompt" or one in view.fields]
    own, its = view.field_of(*NEURONS), other.field_of(*NEURONS)
    neuron = {its: typed[own]} if its and len(typed.get(own, ())) == 1 and "," not in typed[own][0] else {}
    return {name: typed[name] for name in names if name in typed} | neuron


class Explorer:
    """What the views look at: one model, a store of its neurons if there is one, and facts to begin with.

    An operation runs on the one worker thread, so the model is its alone while it runs; what it changes in it is back
    as it was when it ends.

    Args:
        model: from :func:`ffnmem.load`. store: of a scan of that model. facts: to choose from. source: where from.
        moment: the second moment to edit with; None for the one that ships with the model, if there is one.

    Raises: InputError: a store of another model.
    """

    def __init__(
        self, model: Model, store: Store | None = None, facts: Sequence[Fact] = (), source: str = "", moment: Any = None
    ) -> None:
        if store is not None:
            store.check_model(model)
        self.model, self.store, self.facts, self.source = model, store, tuple(facts), source
        self.fingerprint = model.fingerprint  # hashed here, not while somebody waits
        self.moment = moment
        self.given: dict[str, Any] = {"Model": model} | ({} if store is None else {"Store": store})
        self.views = read_views(self.given, () if getattr(model.tokenizer, "chat_template", None) else ("chat",))
        self.groups = {
            title: found
            for title, names in GROUPS.items()
            if (found := [self.views[name] for name in names if name in self.views])
        }
        self.results, self.captures = Cache(24), Cache(8)

    @property
    def example(self) -> str:
        """A text to begin with."""
        return self.facts[0].text if self.facts else "The Eiffel Tower is located in the city of"

    @property
    def beginnings(self) -> list[Fact]:
        """A fact of each relation."""
        return list({fact.relation or fact.subject: fact for fact in reversed(self.facts)}.values())[::-1][:BEGINNINGS]

    @property
    def card(self) -> str:
        """The view to which neurons lead."""
        return "neuron" if "neuron" in self.views else "project"

    # -- what is asked -----------------------------------------------------------------------------------------------

    def read(self, view: View, typed: Typed) -> Question:
        """What an address asks of a view, by the command line's own parser; raises InputError."""
        for one in view.required:
            if not typed.get(one.typed_as):
                raise InputError(f"{one.typed_as.replace('_', ' ')} is missing: {one.help}")
        unknown = typed.keys() - {one.typed_as for one in view.fields} - {"top", "full", "go"}
        if unknown:
            raise InputError(f"there is no {sorted(unknown)[0]} here")
        options, placed = [], []
        for one in view.fields:
            values = [value.replace("\r\n", "\n") for value in typed.get(one.typed_as, ())]
            for value in values:
                if choices_of(one):
                    check_choice(one.typed_as, value, choices_of(one))
                elif one.kind.name == "text" and (length := len(self.model.tokenize(value))) > TOKENS:
                    raise InputError(f"the text has {length} tokens, and at most {TOKENS} are shown: take a part of it")
            if one.by_place:
                placed += values if several(one) or one.kind.name in JOINED else values[-1:]
            elif one.kind.name == "bool":
                options += [f"--{'no-' * (value == 'no')}{one.name.replace('_', '-')}" for value in values[-1:]]
            else:
                kept = values if one.kind.many or one.kind.name in (*JOINED, "tokens") else values[-1:]
                options += [f"--{one.name.replace('_', '-')}={value}" for value in kept]
        options += [f"--top={value}" for value in typed.get("top", ())[-1:]] + ["--full"] * ("full" in typed)
        app = App(result_action="return_value", exit_on_error=False, print_error=False, help_flags=(), version_flags=())
        app.default(parser(view.operation.path, tuple(self.given)))
        words = (*options, "--", *placed)
        try:
            _, values_read, output = app(words)
        except CycloptsError as error:
            raise InputError(explain(error).partition(" See '")[0]) from None
        if (output.top or 0) > MOST:
            raise InputError(f"top must be at most {MOST}, not {output.top}")
        return Question(view, words, values_read, output.top or LISTED, output.full)

    # -- what is shown -----------------------------------------------------------------------------------------------

    def show(self, question: Question, progress: Progress) -> Shown | FfnmemError:
        """What a question's page shows, or the user's mistake; on the worker thread."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FfnmemWarning)
            try:
                result = self.call(question, progress).on_page(question.top)
                sheet = result.sheet(question.top, question.full)
            except (InputError, OutOfRangeError) as error:
                return error.with_traceback(None)
            drawing = picture_source(picture("figure")(result, top=question.top)) if result.pictured else ""
        messages = [bounded(str(one.message)) for one in caught if issubclass(one.category, FfnmemWarning)]
        bare = without_origin(sheet).naming_experts(experts_in(getattr(result, "provenance", None)))
        rest = without_verdict(bare)
        verdict = bare.blocks[0] if rest.blocks != bare.blocks else None
        beside = {name.replace("_", " ").capitalize() for name in result.beside.split()}
        columns: tuple[list[Section], list[Section]] = ([], [])
        for one in split_sheet(rest):
            columns[one.title in beside].append(replace(one, anchor=re.sub(r"\W+", "-", one.title.lower())))
        return Shown(result, verdict, columns, drawing, tuple(dict.fromkeys(messages)))

    def call(self, question: Question, progress: Progress) -> Result:
        """The result of an operation; runs of prompts are kept, since one is looked at again and again."""
        one, values = question.view.operation, question.values
        given = self.given | {"progress": progress, "k": question.top}
        if self.moment is not None:
            values = {**values, "moment": self.moment}
        if [part.kind.name for part in one.parameters].count("Capture") == 1 and isinstance(values.get("prompt"), str):
            asked = values["prompt"], bool(values.get("chat"))
            captured = self.captures.kept.get(asked) or read_capture(asked[0], self.model, asked[1])
            given["Capture"] = self.captures.put(asked, captured)
        found: Result = one.call(values, given)
        return found

    # -- where it leads ----------------------------------------------------------------------------------------------

    def links(self, view: View, typed: Typed) -> Links:
        """By the kind of a cell, where it leads: a neuron to its card, a token to the neurons behind it, a layer and
        position to what fired there."""
        found: dict[str, Callable[[Any], str]] = {}
        card, search, report = (self.views.get(name) for name in (self.card, "token", "report"))
        if card is not None:
            neuron = card.field_of(*NEURONS, "layer")
            found["neuron"] = lambda at: card.address({neuron: [f"{at[0]}.{at[1]}"]})
        if search is not None:
            token = search.field_of("tokens", "token")
            found["token"] = lambda text: search.address({token: [text]}) if text.strip() else ""
        if "prompt" in typed and report is not None:
            asked = {name: typed[name] for name in ("prompt", "chat", "by") if name in typed}
            found["position"] = lambda at: report.address({**asked, "position": [str(at)]})
            same = shared(view, report, typed)
            found["cell"] = lambda at: report.address({**same, "layer": [str(at[0])], "at": [str(at[1])]}) + "#firings"
            if "intervene" in self.views and view.name != "intervene":
                found["tick"] = TICK.format
        return found

    def others(self, view: View, typed: Typed) -> Iterator[tuple[str, str]]:
        """Views for which what was typed is enough, and their addresses."""
        for name, other in self.views.items():
            same = shared(view, other, typed)
            if other is not view and same and all(one.typed_as in same for one in other.required):
                yield name, other.address(same)

    def beside(self, view: View, typed: Typed) -> list[tuple[str, str, str]]:
        """Of a page of one neuron, the pages of those beside it: words, how they are related, address."""
        name = view.field_of(*NEURONS)
        try:
            layer, neuron = read_neuron(typed[name][-1].strip())
            layer, neuron = self.model.layer(layer), self.model.neuron(layer, neuron)
        except (KeyError, FfnmemError):
            return []
        near = {("← previous", "prev"): (layer, neuron - 1), ("next →", "next"): (layer, neuron + 1),
                ("layer below", ""): (layer - 1, neuron), ("layer above", ""): (layer + 1, neuron)}  # fmt: skip
        sizes = dict(enumerate(ffn.d_mlp for ffn in self.model.ffn))
        return [
            (*words, view.address({**typed, name: [f"{at}.{number}"]}))
            for words, (at, number) in near.items()
            if 0 <= number < sizes.get(at, 0)
        ]
