"""Editors by name, each fact edited by itself; what several of them need of a fact is found once."""

from __future__ import annotations

import hashlib
import inspect
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Annotated, Any

from jaxtyping import Float64
from torch import Tensor

from ..core.checked_files import digest
from ..core.errors import (
    FileError,
    InputError,
    check_choice,
    check_kind,
    counted,
    perhaps,
    quoted,
    unwarned,
)
from ..core.files import user_path
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import WITHOUT_MOMENT, Count, NonNegative, Positive, check_value, checked, read_kinds
from ..editing.baselines import tune_values
from ..editing.closed_forms import (
    ClosedForm,
    alphaedit_form,
    average_keys,
    closed_form_edit,
    find_directions,
    layer_range,
    memit_form,
)
from ..editing.edit import Edit
from ..editing.moments import SecondMoment, load_second_moment
from ..editing.preparing import EditPlan, Moment, Settings, check_reaches, choose_contexts, find_values, read_settings
from ..editing.rank_one import KEYS, edit_rank_one
from ..editing.requests import PLAIN, Request, make_request
from ..editing.settings import EditSettings, unknown_words
from ..editing.values import FoundValue
from ..facts.fact import Fact
from ..models.model import Model
from ..models.replaying import PlainLayers

EditOrReason = Edit | str | None
"""An edit; why there is none; None where nothing is edited."""

OwnEditor = Annotated[Callable[[Model, list[Fact]], Any], "a function (of model and facts, or fm.evaluation.made)"]
"""``editor(model, facts)``: as many edits as facts; of a single fact the edit may stand alone."""

ProtectedKeys = dict[int, Float64[Tensor, "p d_mlp"]]
"""By layer, keys of facts that were edited before."""


@dataclass(frozen=True)
class Editor:
    """How an editor of a name works; without ``procedure``, ``make`` and ``all`` it leaves the model as it is.

    Attributes:
        name: its name.
        options: names of the options that it takes.
        procedure: the editor whose program finds v*, for which contexts and a second moment are needed.
        published: whether it is that program whatever the settings.
        form: makes the closed form that is solved for one fact or for some, ``form(plan, …)``; rome has none.
        protects: whether it protects the keys of facts that were edited before.
        make: of an editor that needs the request alone, makes its edit: ``make(plan, which, …)``.
        all: makes the edits of some facts by itself; a function of the user's.
    """

    name: str
    options: tuple[str, ...] = ()
    procedure: str | None = None
    published: bool = False
    form: Callable[..., ClosedForm] | None = None
    protects: bool = False
    make: Callable[..., Edit] | None = None
    all: OwnEditor | None = None


@dataclass(frozen=True, eq=False)
class Setup:
    """What all facts are edited with.

    Attributes:
        plan: model, layers, contexts, settings and second moment.
        target: the new one of all facts, or None.
        options: of all editors.
        plans: by editor that looks for v*, the plan with its settings.
    """

    plan: EditPlan
    target: str | None
    options: Mapping[str, Any]
    plans: Mapping[str, EditPlan] = field(default_factory=dict)

    def plan_of(self, editor: Editor) -> EditPlan:
        """The plan with the settings of an editor."""
        return self.plans.get(editor.name, self.plan)

    def options_of(self, editor: Editor) -> dict[str, Any]:
        """Those that an editor takes."""
        return {name: value for name, value in self.options.items() if name in editor.options}

    def with_plans(self, **changes: Any) -> Setup:
        """A setup with something else in every plan."""
        plans = {name: replace(plan, **changes) for name, plan in self.plans.items()}
        return replace(self, plan=replace(self.plan, **changes), plans=plans)

    def start(self, facts: Sequence[Fact], protected: ProtectedKeys | None = None) -> FactBatch:
        """Facts to be edited; those that cannot be asked for have a reason."""
        requests: list[Request] = []
        reasons: dict[int, str] = {}
        places: dict[int, int] = {}
        for i, fact in enumerate(facts):
            try:
                request = make_request(self.plan.model, fact, self.target, self.plan.contexts)
            except InputError as error:
                reasons[i] = str(error)
                continue
            places[i] = len(requests)
            requests.append(request)
        return FactBatch(self.with_plans(requests=tuple(requests)), tuple(facts), places, reasons, protected or {})


@dataclass(frozen=True, eq=False)
class FactBatch:
    """Some facts, and what editors share of them.

    Attributes:
        setup: with the requests of those that can be asked for.
        facts: which.
        places: by fact, its request. reasons: by fact, why it has none.
        protected: keys of facts that were edited before.
        values: by settings, and the ridge where ΔW's own direction matters, v* of each request, found when the first
            editor needs it.
    """

    setup: Setup
    facts: tuple[Fact, ...]
    places: Mapping[int, int]
    reasons: Mapping[int, str]
    protected: ProtectedKeys
    values: dict[tuple[EditSettings, float | None], list[FoundValue]] = field(default_factory=dict)

    def find_values(self, plan: EditPlan, keys: str | None = None, ridge: float | None = None) -> list[FoundValue]:
        """v* of each request by the settings of a plan; editors of the same settings share it."""
        directions = find_directions(plan, keys, ridge)
        which = plan.settings, None if directions is None else plan.ridge(ridge)
        if which not in self.values:
            plan.check_moment([plan.settings.layer])
            self.values[which] = find_values(plan, directions=directions) if plan.requests else []
        return self.values[which]

    def edits(self, editor: Editor) -> list[EditOrReason]:
        """Each fact's own edit, or why it has none."""
        if editor.procedure is None and editor.make is None and editor.all is None:
            return [None] * len(self.facts)
        if editor.all is not None and self.facts:
            try:
                return self.solve_each(editor, list(self.facts))
            except InputError:  # one fact's fault must not be all facts'
                pass
        return [self.alone(editor, i) for i in range(len(self.facts))]

    def alone(self, editor: Editor, which: int) -> EditOrReason:
        """A single fact's edit, or why it has none."""
        try:
            if editor.all is not None:
                return self.solve_each(editor, [self.facts[which]])[0]
            return self.reasons[which] if which in self.reasons else self.edit(editor, [self.places[which]])
        except InputError as error:
            return str(error)

    def edit(self, editor: Editor, which: Sequence[int]) -> Edit:
        """One edit of some of the plan's requests; of one alone by an editor without a closed form."""
        plan, options = self.setup.plan_of(editor), self.setup.options_of(editor)
        if editor.make is not None:
            return editor.make(plan, which[0], **options)
        force = bool(options.pop("force", False))
        if editor.form is None:
            keys, ridge = options.get("keys"), options.get("ridge")
            return edit_rank_one(plan, which[0], self.find_values(plan, keys, ridge)[which[0]], keys, ridge, force)
        form = editor.form(plan, **options)
        form = replace(form, previous=self.protected) if editor.protects else form
        values = self.find_values(plan, ridge=form.ridge)
        return closed_form_edit(plan, which, [values[i] for i in which], form, force)

    def together(self, editor: Editor) -> list[EditOrReason]:
        """For each fact the one edit of all that can be asked for and have a v*, or why it is not in it.

        Raises: InputError: an editor that edits single facts alone.
        """
        check_together(editor)
        plan, reasons = self.setup.plan_of(editor), dict(self.reasons)
        made: EditOrReason = None
        try:
            values = self.find_values(plan, ridge=self.setup.options_of(editor).get("ridge"))
            for i, place in self.places.items():
                try:
                    check_reaches(plan, plan.requests[place], values[place])
                except InputError as error:
                    reasons[i] = str(error)
            if which := [place for i, place in self.places.items() if i not in reasons]:
                made = self.edit(editor, which)
        except InputError as error:
            made = str(error)
        return [reasons.get(i, made) for i in range(len(self.facts))]

    def solve_each(self, editor: Editor, facts: list[Fact]) -> list[EditOrReason]:
        """What an editor makes of facts by itself; InputError if it is not an edit of each."""
        assert editor.all is not None
        if self.setup.target is not None:
            facts = [replace(fact, target_new=self.setup.target.strip()) for fact in facts]
        with unwarned():  # what is doubtful about an edit is what is measured here
            made = editor.all(self.setup.plan.model, facts)
        found = [made] if isinstance(made, Edit) else list(made) if isinstance(made, Iterable) else []
        if len(found) != len(facts) or not all(isinstance(edit, Edit) for edit in found):
            gave = reprlib.repr(made)
            raise InputError(f"editor {editor.name} gave {gave} for {len(facts)} facts: give each an Edit of its own")
        return list(found)


# -- edits made before -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MadeEdits:
    """Edits that are there already, as an editor: of each fact its own. Made by :func:`made`.

    Attributes:
        name: of the editor.
        edits: by the id of the fact, or its text where it has none.
    """

    name: str
    edits: Mapping[str, Edit]

    def __call__(self, _model: Model, facts: Sequence[Fact]) -> list[Edit]:
        """Each fact's edit. Raises InputError for a fact that has none, or one that makes something else of it."""
        return [self.of(fact) for fact in facts]

    def of(self, fact: Fact) -> Edit:
        found = next((self.edits[name] for name in (fact.id, fact.text) if name in self.edits), None)
        if found is None:
            raise InputError(f"{self.name} has no edit of fact {quoted(fact.name)}")
        about = [(own.subject, target.strip()) for own, target in zip(found.facts, found.targets, strict=True)]
        wanted = (fact.subject, (fact.target_new or "").strip())
        if about and about[0] != wanted:
            was, due = (f"{subject} → {target}" for subject, target in (about[0], wanted))
            raise InputError(f"the edit of fact {quoted(fact.name)} is {quoted(was)}, where {quoted(due)} is asked for")
        return found

    def check(self, model: Model) -> None:
        """Raise ModelError for an edit of another model, InputError for one that the model has already."""
        for edit in self.edits.values():
            edit.check_fits(model)
            edit.check_absent(model)

    @property
    def digest(self) -> str:
        """Of all that the cases depend on."""
        return digest(
            {
                name: [edit.digest, list(edit.targets), edit.numbers.to_json(double_precision=15)]
                for name, edit in self.edits.items()
            }
        )

    def __repr__(self) -> str:
        return f"MadeEdits({self.name!r}: {counted(len(self.edits), 'edit')})"


@checked
def made(edits: Edit | Iterable[Edit] | Mapping[str, Edit], name: str = "made") -> MadeEdits:
    """Edits made elsewhere, or before, as an editor for :func:`ffnmem.evaluate`: each fact gets its own.

    ``evaluate(model, facts, "rome", compare=[made(edits, "mine")])``. A fact that has none is a failure, and so is one
    whose edit is of another subject or target.

    Args:
        edits: of a fact each, which is known again by its id (by its text where it has none); or by such names, as
            :attr:`ffnmem.evaluation.Scores.edits` has an editor's: then an edit may say nothing of its fact.
        name: what tables call them.

    Raises: InputError: no edits, one of several facts, two of one fact, a name that is empty or "none".
    """
    if not name.strip() or name == "none":
        raise InputError(f"edits cannot be called {quoted(name)}: give them a name, such as 'mine'")
    each = [edits] if isinstance(edits, Edit) else list(edits.values() if isinstance(edits, Mapping) else edits)
    for edit in each:
        check_kind("an edit", edit, Edit, "an Edit (from an editor such as fm.rome)")
        if len(edit.facts) > 1:
            raise InputError(f"{edit.title} is an edit of {len(edit.facts)} facts: give each an Edit of its own")
        if not (edit.facts or isinstance(edits, Mapping)):
            raise InputError(f"{edit.title} does not say which fact it is of: give a dict of fact ids and edits")
    names = list(edits) if isinstance(edits, Mapping) else [edit.facts[0].name for edit in each]
    for one in names:
        check_kind("the name of a fact", one, str, "a text")
    if not each:
        raise InputError("there are no edits: give at least one")
    ((most, times),) = Counter(names).most_common(1)
    if times > 1:
        raise InputError(f"there are {times} edits of fact {quoted(most)}: give it one")
    return MadeEdits(name, MappingProxyType(dict(zip(names, each, strict=True))))


def is_edits(name: str) -> bool:
    """Whether a name is of edits that were made before: a file, or a folder with some."""
    return name.endswith(".zip") or (name not in EDITORS and user_path(name).is_dir())


def read_edits(name: str) -> MadeEdits:
    """The edits in a file, or in the files of a folder, by its name. Raises FileError, InputError."""
    place = user_path(name)
    files = sorted(place.glob("*.zip")) if place.is_dir() else [place]
    if not files:
        raise FileError(f"{name} has no edits in it: ffnmem edit --out writes them, as NAME.zip")
    return made([Edit.load(file) for file in files], place.resolve().name if place.is_dir() else place.stem)


def facts_of_edits(edits: MadeEdits) -> list[Fact]:
    """The facts that edits are of, with their targets."""
    return [replace(edit.facts[0], target_new=edit.targets[0]) for edit in edits.edits.values()]


# -- the editors -------------------------------------------------------------------------------------------------------


def with_original(name: str, *options: str, **more: Any) -> tuple[Editor, Editor]:
    """An editor, and as NAME_original its published program."""
    original = tuple(option for option in options if option != "keys")
    return Editor(name, options, name, **more), Editor(f"{name}_original", original, name, published=True, **more)


KNOWN = (
    *with_original("rome", "keys", "ridge", "force"),
    *with_original("memit", "layers", "weight", "norm", "ridge", "force", form=memit_form),
    *with_original("alphaedit", "layers", "threshold", "penalty", "force", form=alphaedit_form, protects=True),
    Editor("ft_l", ("bound", "rate", "steps", "stop", "force"), make=tune_values),
    Editor("none"),
)
EDITORS: Mapping[str, Editor] = MappingProxyType({editor.name: editor for editor in KNOWN})
"""What ``evaluate`` knows by name; "none" leaves the model as it is."""
RANGES: Mapping[str, Any] = {
    "steps": Count,
    **dict.fromkeys(("ridge", "norm", "stop"), NonNegative),
    **dict.fromkeys(("weight", "bound", "rate", "threshold", "penalty"), Positive),
}
"""Of options that are numbers."""


def split_settings(editors: Sequence[Editor], settings: Settings) -> tuple[dict[str, Any], Settings]:
    """Of settings the editors' own options by name, and those of how v* is found, where an editor looks for one.

    Raises: InputError: a setting that there is not.
    """
    if not isinstance(settings, Mapping):
        return {}, settings
    known = {"base", *(one.name for one in fields(EditSettings))}
    own = {name for editor in editors for name in editor.options}
    if unknown := sorted({*settings} - known - own):
        raise InputError(f"unknown setting {unknown_words(unknown[0], sorted(own))}")
    if any(editor.procedure is not None for editor in editors):
        own -= known
    rest = {name: value for name, value in settings.items() if name not in own}
    return {name: value for name, value in settings.items() if name in own}, rest or None


def editor_options(editors: Sequence[str], settings: Settings = None, **given: Any) -> dict[str, Any]:
    """What editors of some names are run with: their own options by name, and all other settings in ``settings``.

    Args:
        given: ``layer``, ``expert``, ``moment`` and ``force``, those that are None or False left out.

    Raises: InputError: a setting that there is not, or something that does nothing with these editors.
    """
    options, settings = split_settings([EDITORS[name] for name in editors], settings)
    editing = [name for name in editors if name != "none"]
    searching = [name for name in editing if name not in WITHOUT_MOMENT]
    rome = [name for name in editing if EDITORS[name].procedure == "rome"]
    takers = {"layer": editing, "force": editing, "moment": searching, "settings": searching, "expert": rome}
    for name, value in {**given, "settings": settings or None}.items():
        if value is not None and value is not False:
            if not takers[name]:
                word = f"{name} {next(iter(settings))}" if value is settings and isinstance(settings, Mapping) else name
                raise InputError(f"{word} does nothing with {', '.join(editors)}: leave it out")
            options[name] = value
    return options


def check_editors(
    editors: Sequence[object], layer: LayerName | None = None, moment: Moment = None, settings: Settings = None
) -> None:
    """Raise InputError for editors that there are not, and for settings that are unknown or do nothing with them."""
    names = [editor.name for editor in choose_editors(editors) if editor.all is None]
    if names or layer is not None or moment is not None or settings:
        editor_options(names or ["none"], settings, layer=layer, moment=moment)


def check_together(editor: Editor) -> None:
    """Raise InputError for an editor that makes no edit of several facts."""
    if editor.form is None:
        able = [name for name, one in EDITORS.items() if one.form is not None]
        raise InputError(f"together: {editor.name} edits one fact at a time: leave it out, or take {', '.join(able)}")


def own_editors(editors: Iterable[Editor]) -> dict[str, str]:
    """Functions among editors by name, each with a digest of its source, so that a folder knows them again.

    Of edits that were made before, a digest of these. Raises: InputError: a function that cannot be told from others of
    its name.
    """
    digests = {}
    for own in (editor.all for editor in editors if editor.all is not None):
        if isinstance(own, MadeEdits):
            digests[own.name] = own.digest
            continue
        name = str(getattr(own, "__qualname__", type(own).__name__))
        # A lambda or a closure depends on what its own lines do not say.
        if not inspect.isfunction(own) or "<lambda>" in name or own.__closure__:
            raise InputError(f"editor {name} cannot be kept in a folder: give a function with a name, of its module")
        try:
            text = inspect.getsource(own)
        except OSError:
            raise InputError(f"editor {name} cannot be kept in a folder: its source is not in a file") from None
        digests[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digests


def choose_editors(editors: Sequence[object]) -> tuple[Editor, ...]:
    """Editors of names, and functions as editors; raises InputError for an unknown or repeated one."""
    found: list[Editor] = []
    for one in editors:
        if isinstance(one, str) and is_edits(one):
            one = read_edits(one)
        if isinstance(one, str):
            found.append(EDITORS[check_choice("editor", one, EDITORS)])
        elif isinstance(one, MadeEdits):
            found.append(Editor(one.name, all=one))
        elif callable(one):
            found.append(Editor(str(getattr(one, "__name__", type(one).__name__)), all=one))
        else:
            raise InputError(f"editor {quoted(one)} is neither a name ({', '.join(EDITORS)}) nor a function")
    names = [editor.name for editor in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"editor {quoted(twice)} is asked for twice: name each once, and give functions names of their own"
        )
    return tuple(found)


def set_up(
    plain: PlainLayers,
    editors: Sequence[Editor],
    target: str | None,
    /,  # memit has an option named layers
    *,
    layer: LayerName | None,
    seed: int,
    moment: Moment = None,
    contexts: Sequence[str] | None = None,
    settings: Settings = None,
    **options: Any,
) -> Setup:
    """What editors' arguments mean, for all facts; see :func:`ffnmem.evaluate`.

    Raises: InputError: an option that none of the editors takes, no second moment for this model where one is needed,
        contexts without ``{}``, unknown settings. OutOfRangeError: no such layer. ModelError: edits of another model.
    """
    model = plain.model
    given, settings = split_settings(editors, settings)
    options = {**given, **options}
    for editor in editors:
        if isinstance(editor.all, MadeEdits):
            editor.all.check(model)
    known = sorted({name for editor in editors for name in editor.options})
    for name in options:
        if name not in known:
            takes = [*known, "layer", "moment", "contexts", "settings"]
            whose = ", ".join(editor.name for editor in editors)
            raise InputError(
                f"option {quoted(name)} is none of {whose}{perhaps(name, takes)}: they take {', '.join(takes)}"
            )
    own, _ = read_settings(model, layer, settings, "rome")
    procedures = {editor.procedure for editor in editors} - {None}  # of editors that look for v*
    named = [own.layer] if procedures == {"rome"} else []
    source: Moment = load_second_moment(moment, model, named) if procedures else moment
    texts, unseen = choose_contexts(model, contexts, seed) if procedures else ((PLAIN,), ())
    # What is out of range would else be the failure of every fact.
    given = {name: value for name, value in options.items() if value is not None}
    if "keys" in given:
        check_choice("keys", given["keys"], KEYS)
    for name in (name for name in given if name in RANGES):
        check_value(name, given[name], read_kinds(RANGES[name]))
    plan = EditPlan(model, plain, (), texts, seed, own, source, unseen=unseen)
    plans: dict[str, EditPlan] = {}
    for editor in editors:
        if editor.procedure is not None:
            theirs, published = read_settings(model, layer, settings, editor.procedure, editor.published)
            plans[editor.name] = replace(plan, settings=theirs, published=published)
    setup = Setup(plan, target, options, plans)
    for editor in editors:
        if editor.procedure is not None and "layers" in editor.options:
            layer_range(setup.plan_of(editor), given.get("layers"), editor.procedure)
        if editor.procedure == "alphaedit":
            alphaedit_form(setup.plan_of(editor), *(given.get(name) for name in ("layers", "threshold", "penalty")))
    return setup


def edit_conditions(setup: Setup, editors: Sequence[Editor]) -> dict[str, Any]:
    """All that edits depend on, as plain values."""
    plan = setup.plan
    words: dict[str, Any] = {
        "editors": [editor.name for editor in editors],
        "target": setup.target and setup.target.strip(),
    }
    words |= {"settings": plan.settings.to_dict(), "contexts": list(plan.contexts), "seed": plan.seed}
    plans = {editor.name: setup.plan_of(editor) for editor in editors}
    if published := {name: one.settings.to_dict() for name, one in plans.items() if one.published}:
        words["published"] = published
    if isinstance(plan.source, SecondMoment):
        words["second_moment"] = {"tokens": plan.source.count, "corpus": plan.source.corpus_hash}
    return words | {"options": dict(setup.options)}


def keys_in(batch: FactBatch, editor: Editor, which: Iterable[int]) -> ProtectedKeys:
    """The keys of some facts in the layers that an editor protects them in; none where it protects none."""
    places = [batch.places[i] for i in which if i in batch.places]
    if editor.procedure is None or not (editor.protects and places):
        return {}
    plan = batch.setup.plan_of(editor)
    requests = plan.of(places)
    where = layer_range(plan, batch.setup.options.get("layers"), editor.procedure)
    return {layer: average_keys(plan, requests, layer) for layer in where}


def edit_by(
    name: str,
    model: Model,
    fact: Fact,
    target: str,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Edit:
    """The edit of one fact by an editor of a name, "rome_original" and its like included; ``options`` are its own."""
    from .. import editing

    given = {} if options is None else dict(options)
    more: dict[str, Any] = {} if name in WITHOUT_MOMENT else {"seed": seed}
    if name.endswith("_original"):
        name = name.removesuffix("_original")
        given["settings"] = {"base": "published", **given.get("settings", {})}
    found = getattr(editing, name)(model, fact, target, progress=progress, **more, **given)
    assert isinstance(found, Edit)
    return found
