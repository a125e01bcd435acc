"""What may be given: the kinds, ranges and allowed values that public functions are annotated with, and their check.

``@checked`` stands on every public function, and on every public class for its methods. It reads the annotations, so
that what is wrong is said once, in one line, before anything runs: an :class:`InputTypeError` for another kind of
value, an :class:`InputError` for a number out of range or a name that is not allowed. Shapes, and how arguments fit
each other, are the functions' own business. Without torch, so that the command line can import it.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from itertools import chain, repeat
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, SupportsIndex, TypeVar, get_args

from .errors import SEEDS, InputError, InputTypeError, check_choice, check_text, quoted
from .neuron_names import ExpertNeuron

# -- ranges ------------------------------------------------------------------------------------------------------------


class Range(NamedTuple):
    """The bounds of a number, as in ``Annotated[float, Range(above=0, below=1)]``. NaN is in no range."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, name: str, number: Any) -> None:
        """Raise InputError for a number out of bounds."""
        if number != number:
            raise InputError(f"{name} must be a number, not {quoted(number)}")
        bounds = (
            ("at least", operator.ge, self.least),
            ("at most", operator.le, self.most),
            ("above", operator.gt, self.above),
            ("below", operator.lt, self.below),
        )
        for words, holds, bound in bounds:
            if bound is not None and not holds(number, bound):
                raise InputError(f"{name} must be {words} {bound:,}, not {quoted(number)}")


def at_least(number: int) -> Range:
    """The range of a count, as in ``Annotated[int, at_least(2)]``."""
    return Range(number, (1 << 31) - 1)


Count = Annotated[int, at_least(1)]
Whole = Annotated[int, at_least(0)]
Seed = Annotated[int, Range(0, SEEDS - 1)]
Port = Annotated[int, Range(0, 65535)]
Positive = Annotated[float, Range(above=0)]
Share = Annotated[float, Range(above=0, most=1)]
NonNegative = Annotated[float, Range(least=0)]
Number = Annotated[float, Range()]
Finite = Annotated[float, Range(above=float("-inf"), below=float("inf"))]
ContextLength = Annotated[int, at_least(2)]
Examples = Annotated[int, Range(1, 10_000)]
"""How many examples of each kind a scan keeps of a neuron: their memory grows with this, whatever the corpus."""
PageTokens = Annotated[int, at_least(1)]
"""Tokens of one forward pass of many, where that is worth setting."""
Shard = tuple[int, int]
"""The i-th of n parts of a text, from 0."""

# -- what is of no one class ------------------------------------------------------------------------------------------

Means = Any
"""What coefficients are where they are not their own: a store or a capture, whose means are taken, or numbers."""
ChangeNames = Sequence[tuple[str, str, float]]
"""Changes of coefficients as they are typed: a neuron or a layer, "=", "=x" or "+=", and a number."""
Removal = Any
"""What becomes of a neuron that is removed: "zero", "mean", a number, or a change such as ``Scale(2.0)``."""
GraphFile = str | Path | None
"""A graph in the form of circuit-tracer."""
OrdinaryText = Sequence[str] | str | Path | bool | None
"""Texts about other things than facts that are edited: some, or a corpus of which some are drawn."""
OtherFacts = Any
"""Facts, or the name of their source."""
NewFile = str | Path | None
"""A file to write where nothing lies."""
ConfigSource = Any
"""A model, its Hugging Face config, or a name or folder where that is found."""
NewFolder = str | Path
"""A folder to write that does not exist yet, or is empty."""
ResultFile = str | Path | None
"""A file to save a result in, which may take the place of another one of ours."""
Ask = Callable[..., str]
"""Whoever is asked: a function from a question to an answer."""
Contexts = Annotated[int, at_least(4)]
"""So many of a neuron: at least one of each band of strength."""
SignOrBoth = Literal["positive", "negative", "both"]
Below1 = Annotated[float, Range(0, below=1)]
ModelOrEdit = Any
"""A second model, or an edit of the first."""
Draws = Annotated[int, at_least(20)]
"""Of a bootstrap, and of a null."""
OutFolder = str | Path
"""A folder to write to: new, empty, or one that the same call wrote."""
Stores = Sequence[Any]
"""Stores, or their folders."""
Texts = Any
"""A corpus: a file, folder or glob, ``"atlas"``, ``"hf:name"``, texts, or a packed corpus."""
TextSource = Any
"""Texts that a function reads by itself: a corpus as :func:`ffnmem.corpus.open_corpus` takes one, such as a list."""
Tokenizer = Any
"""A model, or a Hugging Face tokenizer."""
FiringNames = Any
"""Firings: names such as ``"3.17@5"``, triples (layer, neuron, position), a table of these, or a result with some."""

# -- allowed values ----------------------------------------------------------------------------------------------------
# Each alias is what functions and commands are annotated with; the tuple beside it is for what loops over the values.

TextUnit = Literal["mean", "max", "last", "span"]
"""What of a text is looked at: the mean over its tokens, the coefficient furthest from 0, its last token, or a span."""

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
"""Of a model."""
Basis = Literal["folded", "raw"]
"""Whether weights are read with the final norm's scale folded into them, or as they are stored."""
Side = Literal["value", "key", "gate"]
"""One of a neuron's vectors."""
LensName = Literal["logit", "jacobian"]
"""How values are read in tokens: as they are written, or as they arrive at the final norm."""
LENSES = LOGIT, JACOBIAN = get_args(LensName)

Division = Literal["paragraph", "line", "file"]
"""What is a document of a .txt file: what blank lines separate, a line, or all of it."""
DIVISIONS = get_args(Division)
ScanDtype = Literal["float32", "bfloat16"]
Engine = Literal["local", "ray"]

ExampleKind = Literal["top", "bottom", "quantile", "random"]
EXAMPLE_KINDS = get_args(ExampleKind)
SignCase = Literal["gate+ linear+", "gate+ linear-", "gate- linear+", "gate- linear-"]
"""Of gated neurons, in the order of every array of cases; + is above 0, - is 0 or below."""
CASES = get_args(SignCase)
AnyExampleKind = Literal[ExampleKind, SignCase]
SearchPlace = Literal["weights", "examples", "text"]
StoreForm = Literal["neuronpedia", "delphi"]
"""Other programs' forms of a store."""

CoefficientSign = Literal["positive", "negative"]
COEFFICIENT_SIGNS = get_args(CoefficientSign)
Verdict = Literal["monosemantic", "polysemantic", "unclear", "inactive"]
VERDICTS = get_args(Verdict)

FactFormat = Literal["ffnmem", "counterfact", "known_1000", "zsre", "knowedit"]
FACT_FORMATS = get_args(FactFormat)
KnownBy = Literal["target", "first"]
"""What of a fact's true target a model must say to know it."""
TraceKind = Literal["state", "ffn", "attention"]
"""What a trace restores or silences."""
TRACE_KINDS = get_args(TraceKind)
TraceWay = Literal["restore", "silence"]

EditorName = Literal[
    "rome",
    "rome_original",
    "memit",
    "memit_original",
    "alphaedit",
    "alphaedit_original",
    "ft_l",
]
EDITORS = get_args(EditorName)
WITHOUT_MOMENT = ("ft_l",)
"""Editors that need no second moment."""
FactOrder = Literal["given", "drawn"]
"""In which order facts are edited."""
EvaluationProtocol = Literal["teacher_forced", "generated"]
"""How edits are judged: by the probabilities of given answers, or besides by what the model writes."""
PROTOCOLS = get_args(EvaluationProtocol)

RoleName = Literal[
    "dead",
    "position",
    "entropy",
    "prediction",
    "suppression",
    "partition",
    "token-detector",
]
"""In order of precedence: a neuron's primary role is the first one that applies."""
TEXT_ROLES = ("dead", "position", "token-detector")
"""Those that need a store."""
AblationOrder = Literal["direct", "paths", "integrated-gradients"]
CausalRule = Literal["gradient", "ig"]
FiringScore = Literal["paths", "causal"]
CircuitForm = Literal["circuit-tracer"]

# -- checks ------------------------------------------------------------------------------------------------------------

Checked = TypeVar("Checked", bound=Callable[..., Any])

FROM = {
    "Model": "fm.load",
    "Capture": "fm.capture",
    "Store": "fm.scan or fm.open_store",
    "Fact": "fm.load_facts or fm.Fact",
    "Edit": "an editor such as fm.rome, or fm.Edit.load",
    "SecondMoment": "fm.editing.second_moment",
    "Scores": "fm.evaluate",
    "Trace": "fm.trace_fact",
    "Traces": "fm.tracing.trace_facts",
    "Knockout": "fm.knockout",
    "Knockouts": "fm.tracing.knockout_facts",
    "VirtualWeights": "fm.virtual_weights",
    "Comparison": "fm.compare",
    "Silencing": "fm.trace_fact(way='silence')",
    "Silencings": "fm.tracing.trace_facts(way='silence')",
}
"""Where the classes that users hand on come from; of the others, the name says it."""
PLAIN = {
    "NoneType": "None",
    "Mapping": "a dict",
    "Live": "a model or a store",
    "Next": "fm.prompts.NEXT",
}
"""What classes are called in messages, where it is not their name."""


def checked(thing: Checked) -> Checked:
    """A function, or a class with its methods, whose arguments are checked before it runs."""
    if not isinstance(thing, type):
        return typing.cast(Checked, check_arguments(thing))
    for name, member in list(vars(thing).items()):
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(plain) and (name == "__init__" or not name.startswith("_")):
            made = check_arguments(plain)
            setattr(thing, name, type(member)(made) if plain is not member else made)
    return thing


def check_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a check of its arguments. Annotations are read when it is first called."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = repeat(next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), ""))
    title = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def with_checks(*args: Any, **kwargs: Any) -> Any:
        kinds = kinds_by_argument(function)
        try:
            named = zip(chain(names, rest), args, strict=False)
            args = tuple(check_value(name, value, kinds.get(name, ANYTHING)) for name, value in named)
            kwargs = {name: check_value(name, value, kinds.get(name, ANYTHING)) for name, value in kwargs.items()}
        except InputError as error:
            raise type(error)(f"{title}: {error}") from None
        return function(*args, **kwargs)

    vars(with_checks)["behind"] = function  # as opposed to __wrapped__, which other decorators set too
    return with_checks


@dataclass(frozen=True)
class Kind:
    """One of the kinds of values that an annotation allows.

    Attributes:
        words: what it is called in a message.
        includes: whether a value is of this kind.
        check: raises InputError for a value of this kind that is out of range or holds something wrong; called with
            the name of the argument and the value. Returns the value, or Python's number in place of NumPy's.
    """

    words: str
    includes: Callable[[Any], bool]
    check: Callable[[str, Any], Any] = lambda _, value: value


ANYTHING = (Kind("anything", lambda _: True),)


def check_value(name: str, value: Any, kinds: tuple[Kind, ...]) -> Any:
    """The value, if it is of one of some kinds. Raises InputTypeError: of none of them; InputError: see Kind."""
    faults: list[InputError] = []
    for kind in kinds:
        if kind.includes(value):
            try:
                return kind.check(name, value)
            except InputError as error:
                faults.append(error)
    if len(faults) == 1:
        raise faults[0]
    raise InputTypeError(f"{name} must be {join_kinds(kinds)}, not {quoted(value)}")


@cache
def kinds_by_argument(function: Callable[..., Any]) -> Mapping[str, tuple[Kind, ...]]:
    """What the annotations of a function allow."""
    plain: Any = inspect.unwrap(function)
    hints = typing.get_type_hints(plain, {}, Names(plain.__globals__), include_extras=True)
    return {name: read_kinds(hint) for name, hint in hints.items() if name != "return"}


class Names(dict[str, Any]):
    """The names of a module. A class that it imports for type checkers only stands for every class of that name:
    importing it would be slow."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins)[name] if hasattr(builtins, name) else ClassName(name, (), {})


class ClassName(type):
    """A class of which only the name is known."""

    def __instancecheck__(cls, value: object) -> bool:
        return any(parent.__name__ == cls.__name__ for parent in type(value).__mro__)

    def __getattr__(cls, name: str) -> ClassName:
        if not name[0].isupper():
            raise AttributeError(name)
        return ClassName(name, (), {})  # of a module


def read_kinds(hint: Any) -> tuple[Kind, ...]:
    """The kinds that an annotation allows, one for each member of a union."""
    origin, inside = typing.get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for member in inside for kind in read_kinds(member))
    if origin is Annotated:
        return tuple(annotate(kind, hint.__metadata__) for kind in read_kinds(inside[0]))
    if hint is Any or isinstance(hint, TypeVar):
        return ANYTHING
    if hasattr(hint, "array_type"):  # jaxtyping's, whose shapes are not looked at here
        return read_kinds(hint.array_type)
    if hint in SIMPLE:
        return (SIMPLE[hint],)
    if origin is Literal:
        words = " or ".join(map(repr, inside))
        return (
            Kind(words, lambda value: isinstance(value, str), lambda name, value: check_choice(name, value, inside)),
        )
    kind = origin or hint
    if kind in (list, tuple, Sequence, Collection, Iterable):
        return (read_list(kind, inside),)
    if kind is Callable:
        return (Kind("a function", callable),)
    if not isinstance(kind, type):
        raise TypeError(f"@checked cannot check the annotation {hint!r}")
    name = kind.__name__
    source = f" (from {FROM[name]})" if name in FROM else ""
    words = PLAIN.get(name) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}{source}"
    return (Kind(words, lambda value: isinstance(value, kind)),)


def annotate(kind: Kind, notes: Iterable[Any]) -> Kind:
    """A kind with the words for it, or the ranges, that stand behind it in an ``Annotated``."""
    words = next((note for note in notes if isinstance(note, str)), kind.words)
    ranges = [note for note in notes if isinstance(note, Range)]

    def check(name: str, value: Any) -> Any:
        for bounds in ranges:
            bounds.check(name, value)
        return kind.check(name, value)

    return Kind(words, kind.includes, check)


def is_whole(value: Any) -> bool:
    """Whether this is a whole number, be it NumPy's or torch's; True and False are none."""
    try:
        return not isinstance(value, bool) and not getattr(value, "ndim", 0) and operator.index(value) is not None
    except TypeError:
        return False


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_flag(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")  # NumPy's


WHOLE = Kind("a whole number", is_whole, lambda _, value: operator.index(value))
SIMPLE: dict[Any, Kind] = {
    int: WHOLE,
    SupportsIndex: Kind(
        "a whole number",
        lambda value: isinstance(value, ExpertNeuron) or is_whole(value),
        lambda _, value: value if isinstance(value, ExpertNeuron) else operator.index(value),
    ),
    float: Kind("a number", is_number, lambda _, value: value if isinstance(value, int | float) else float(value)),
    bool: Kind("True or False", is_flag, lambda _, value: bool(value)),
    str: Kind("a text", lambda value: isinstance(value, str), check_text),
    Path: Kind("a path", lambda value: isinstance(value, str | Path)),  # a text of which may hold any bytes
}


def read_list(kind: Any, inside: tuple[Any, ...]) -> Kind:
    """The kind of a list, a tuple, or whatever else gives one item after the other.

    Bytes, texts and dicts are none of them. What gives its items only once is not asked for them.
    """
    items = [read_kinds(item) for item in inside if item is not ...] or [ANYTHING]
    each = tuple(kind for kinds in items for kind in kinds)
    words = f"a list of {join_kinds(each, many=True)}" if each != ANYTHING else "a list"
    size = None if kind is not tuple or ... in inside or not inside else len(items)
    if size is not None:
        words = f"({', '.join(map(join_kinds, items))})"

    def includes(value: Any) -> bool:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
            return False
        if getattr(value, "ndim", 1) == 0:
            return False  # an array of one number, which NumPy and torch call iterable
        # NumPy's and torch's arrays are no Sequence to Python
        return kind is Iterable or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))

    def check(name: str, value: Any) -> Any:
        if size is not None and len(value) != size:
            raise InputTypeError(f"{name} must be {words}, not {quoted(value)}")
        if each == ANYTHING or isinstance(value, Iterator):
            return value
        some = {*value[:1], *value[-1:]} if isinstance(value, range) else value  # the rest lies between
        for place, item in enumerate(some):
            check_value(f"{name}[{place}]", item, each if size is None else items[place])
        return value

    return Kind(words, includes, check)


def join_kinds(kinds: Iterable[Kind], many: bool = False) -> str:
    """Alternatives in words, None last: ``a text, a number or None``; with ``many``, ``texts, numbers or None``."""
    words = sorted(dict.fromkeys(kind.words for kind in kinds), key=lambda one: one == "None")
    if many:
        words = [re.sub(r"^an? (.+?)s?( \(.*)?$", r"\1s\2", one) for one in words]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
