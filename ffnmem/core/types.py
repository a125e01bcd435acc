"""What users give to public functions, checked at the door against the functions' own annotations.

``@checked`` stands on every public function, and on every public class for its methods. A wrong argument is then an
:class:`InputTypeError` that says what was expected, once for all, and the functions behind need not ask. Only kinds are
checked here, and the items of lists; shapes, ranges and spellings are the functions' own business.
"""

from __future__ import annotations

import builtins
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, wraps
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, Literal, SupportsIndex, TypeVar, get_args

from .errors import InputTypeError, check_seed, check_text, quoted

Checked = TypeVar("Checked", bound=Callable[..., Any])

# -- allowed values ----------------------------------------------------------------------------------------------------
# Each alias is what functions and commands are annotated with; the tuple beside it is for what loops over the values.

Dtype = Literal["float32", "float64", "bfloat16", "float16"]
"""Of a model."""
Basis = Literal["folded", "raw"]
"""Whether weights are read with the final norm's scale folded into them, or as they are stored."""
Side = Literal["value", "key", "gate"]
"""One of a neuron's vectors."""
Lens = Literal["logit", "jacobian"]
"""How values are read in tokens: as they are written, or as they arrive at the final norm."""
LENSES = LOGIT, JACOBIAN = get_args(Lens)

Division = Literal["paragraph", "line", "file"]
"""What is a document of a .txt file: what blank lines separate, a line, or all of it."""
DIVISIONS = get_args(Division)
ScanDtype = Literal["float32", "bfloat16"]
SCAN_DTYPES = get_args(ScanDtype)
Engine = Literal["local", "ray"]
ENGINES = get_args(Engine)

ExampleKind = Literal["top", "bottom", "quantile", "random"]
EXAMPLE_KINDS = get_args(ExampleKind)
SignCase = Literal["gate+ linear+", "gate+ linear-", "gate- linear+", "gate- linear-"]
"""Of gated neurons, in the order of every array of cases; + is above 0, - is 0 or below."""
CASES = get_args(SignCase)
SearchPlace = Literal["weights", "examples"]
SEARCHED = get_args(SearchPlace)
StoreForm = Literal["neuronpedia", "delphi"]
"""Other programs' forms of a store."""
STORE_FORMS = get_args(StoreForm)

CoefficientSign = Literal["positive", "negative"]
COEFFICIENT_SIGNS = get_args(CoefficientSign)
Verdict = Literal["monosemantic", "polysemantic", "unclear", "inactive"]
VERDICTS = get_args(Verdict)
RandomDirection = Literal["own", "matched", "isotropic", "mixed"]
"""What verdicts by chance are of: neurons themselves, and kinds of random directions."""
DIRECTIONS = get_args(RandomDirection)
Intruder = Literal["meaning", "neuron", "half"]
"""Where an intruder among examples is from."""
ODD_ONES = get_args(Intruder)
IntruderJudge = Literal["state", "around", "token", "trigger"]
"""By what an intruder is looked for."""
JUDGES = get_args(IntruderJudge)
DescriptionScore = Literal["detection", "fuzzing", "intruder"]
DESCRIPTION_SCORES = get_args(DescriptionScore)

FactFormat = Literal["ffnmem", "counterfact", "known_1000", "zsre", "knowedit", "mquake", "pararel"]
FACT_FORMATS = get_args(FactFormat)
WrittenFactFormat = Literal["ffnmem", "counterfact", "knowedit", "mquake"]
FACT_FORMATS_WRITTEN = get_args(WrittenFactFormat)
TraceKind = Literal["state", "ffn", "attention"]
"""What a trace restores."""
TRACE_KINDS = get_args(TraceKind)
TracePart = Literal["ffn", "attention"]
"""What a trace can keep corrupted above a restored state."""
TRACE_PARTS = get_args(TracePart)

EditorName = Literal[
    "rome",
    "rome_original",
    "emmet",
    "emmet_original",
    "memit",
    "memit_original",
    "alphaedit",
    "alphaedit_original",
    "encore",
    "encore_original",
    "ft_l",
    "embedding_swap",
]
EDITORS = get_args(EditorName)
WITHOUT_MOMENT = ("ft_l", "embedding_swap")
WITHOUT_LAYER = ("embedding_swap",)
"""Editors that need no second moment, and those that choose their layers themselves."""
EvaluationProtocol = Literal["teacher_forced", "generated"]
"""How edits are judged: by the probabilities of given answers, or besides by what the model writes."""
PROTOCOLS = get_args(EvaluationProtocol)

RoleName = Literal[
    "dead",
    "position",
    "entropy",
    "token-frequency",
    "prediction",
    "suppression",
    "partition",
    "token-detector",
    "strengthening",
    "weakening",
]
"""In order of precedence: a neuron's primary role is the first one that applies."""
ROLE_NAMES = get_args(RoleName)
TEXT_ROLES = ("dead", "position", "token-frequency", "token-detector")
"""Those that need a store."""
DyingOptimiser = Literal["adam", "sgd"]
DYING_OPTIMISERS = get_args(DyingOptimiser)
DyingActivation = Literal["relu", "gelu", "silu"]
DYING_ACTIVATIONS = get_args(DyingActivation)

ComparisonBaseline = Literal["keys", "coefficients"]
"""What random neurons are made of: what neurons take in, rotated, or what comes out."""
BASELINES = get_args(ComparisonBaseline)
CausalRule = Literal["gradient", "relp", "ig"]
CAUSAL_RULES = get_args(CausalRule)
CircuitForm = Literal["circuit-tracer"]
CIRCUIT_FORMS = get_args(CircuitForm)
PlantedKind = Literal["meanings", "roles", "facts"]
PLANTED_KINDS = get_args(PlantedKind)
StudyName = Literal["geva2021", "gurnee2024", "voita2023"]
STUDIES = get_args(StudyName)

# -- checks of arguments -----------------------------------------------------------------------------------------------

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
    "Silencing": "fm.tracing.silence_fact",
    "Silencings": "fm.tracing.silence_facts",
}
"""Where the classes that users hand on come from; of the others, the name says it."""
PLAIN = {
    "str": "a text",
    "bool": "True or False",
    "NoneType": "None",
    "Path": "a path",
    "Mapping": "a dict",
    "Live": "a model or a store",
    "Next": "fm.prompts.NEXT",
}
NO_LIST = (str, bytes, bytearray, memoryview, Mapping)


def checked(thing: Checked) -> Checked:
    """A function, or a class with its methods, whose arguments are checked before it runs."""
    if not isinstance(thing, type):
        return typing.cast(Checked, guarded(thing))
    for name, member in list(vars(thing).items()):
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(plain) and (name == "__init__" or not name.startswith("_")):
            made = guarded(plain)
            setattr(thing, name, type(member)(made) if plain is not member else made)
    return thing


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind the check of its arguments. Annotations are read when it is first called."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")

    @wraps(function)
    def with_checks(*args: Any, **kwargs: Any) -> Any:
        rules = rules_of(function)
        args = tuple(map(plain_number, args))
        kwargs = {name: plain_number(value) for name, value in kwargs.items()}
        for place, value in enumerate(args):
            check_argument(function, rules, names[place] if place < len(names) else others, value)
        for name, value in kwargs.items():
            check_argument(function, rules, name, value)
        return function(*args, **kwargs)

    vars(with_checks)["behind"] = function  # as opposed to __wrapped__, which other decorators set too
    return with_checks


def plain_number(value: Any) -> Any:
    """An int in place of NumPy's or torch's whole number, which arrays of no dimension are too; else the value."""
    whole = getattr(value, "ndim", None) == 0 and "int" in str(getattr(value, "dtype", ""))
    return index(value) if whole else value


def check_argument(function: Callable[..., Any], rules: Mapping[str, ArgumentRule], name: str, value: Any) -> None:
    """Raise InputTypeError, or InputError for half a character or a seed out of range."""
    rule = rules.get(name)
    if rule is None:
        return
    if not rule.fits(value):
        what = f"{function.__qualname__.replace('.__init__', '')}: {name} must be {joined(rule.due)}"
        raise InputTypeError(f"{what}, not {rule.strange(value)}{right_place(rules, value)}")
    if name == "seed" and value is not None:
        check_seed(value)
    if not rule.path:
        for text in texts_in(value):
            check_text(name, text)


def right_place(rules: Mapping[str, ArgumentRule], value: Any) -> str:
    """Where one of the classes that users hand on belongs, when it stands in another argument's place."""
    known = type(value).__name__ in FROM
    other = next((name for name, rule in rules.items() if known and rule.fits(value)), None)
    return "" if other is None else f": give that as {other}=…"


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        yield from (item for item in value if isinstance(item, str))


@dataclass(frozen=True)
class ArgumentRule:
    """What an annotation takes.

    Attributes:
        fits: whether a value is of that kind.
        due: in words, one for each alternative.
        item: of a list, what its items are.
        path: whether a text is a path, which has a check of its own.
    """

    fits: Callable[[Any], bool]
    due: tuple[str, ...]
    item: ArgumentRule | None = None
    path: bool = False

    def strange(self, value: Any) -> str:
        """What is wrong, for a message: a value, or an item where there is a list with a strange one in it."""
        if self.item is not None and isinstance(value, list | tuple):
            found = [one for one in value if not self.item.fits(one)]
            return f"{quoted(found[0])} among them" if found else quoted(value)
        return quoted(value)


@cache
def rules_of(function: Callable[..., Any]) -> Mapping[str, ArgumentRule]:
    """The rules of a function's annotated arguments; none of those that take anything."""
    plain: Any = inspect.unwrap(function)
    names = Names(plain.__globals__)
    found = {}
    for name, annotation in plain.__annotations__.items():
        known = eval(annotation, {}, names) if isinstance(annotation, str) else annotation
        rule = None if name == "return" else rule_of(known)
        if rule is not None:
            found[name] = rule
    return found


class Names(dict[str, Any]):
    """The names of a module; what it imports for type checkers only is known by its name."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins)[name] if hasattr(builtins, name) else Named(name, (), {})


class Named(type):
    """A class of which only the name is known: importing it would be slow, or against the order of the rooms."""

    def __instancecheck__(cls, value: object) -> bool:
        return any(one.__name__ == cls.__name__ for one in type(value).__mro__)

    def __getattr__(cls, name: str) -> Named:
        if not name[0].isupper():
            raise AttributeError(name)
        return Named(name, (), {})  # of a module


def rule_of(annotation: Any) -> ArgumentRule | None:
    """The rule of an annotation; None where anything goes."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any_of([rule_of(one) for one in inside])
    if origin is typing.Annotated:  # with the words for it
        rule = rule_of(inside[0])
        return rule and replace(rule, due=(annotation.__metadata__[0],))
    if annotation is Any or isinstance(annotation, TypeVar):
        return None
    if hasattr(annotation, "array_type"):  # jaxtyping's, whose shapes are not looked at here
        return rule_of(annotation.array_type)
    if annotation in (int, SupportsIndex):
        return ArgumentRule(is_whole, ("a whole number",))
    if annotation is float:
        return ArgumentRule(lambda value: isinstance(value, Real) and not isinstance(value, bool), ("a number",))
    if annotation is bool:
        return ArgumentRule(
            lambda value: isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"), (PLAIN["bool"],)
        )
    if origin in (tuple, list, set, Sequence, Iterable, Collection):
        return list_of(origin, [one for one in inside if one is not ...])
    kind = origin or (type(None) if annotation is None else annotation)
    if kind is Callable:
        return ArgumentRule(callable, ("a function",))
    if not isinstance(kind, type):
        raise TypeError(f"@checked cannot check the annotation {annotation!r}")
    return ArgumentRule(lambda value: isinstance(value, kind), (words(kind),), path=kind is Path)


def any_of(rules: Sequence[ArgumentRule | None]) -> ArgumentRule | None:
    """The rule of a union."""
    known = sorted((rule for rule in rules if rule is not None), key=lambda rule: rule.item is not None)
    if len(known) < len(rules):
        return None
    items = [rule.item for rule in known if rule.item is not None]
    return ArgumentRule(
        lambda value: any(rule.fits(value) for rule in known),
        tuple(dict.fromkeys(due for rule in rules if rule is not None for due in rule.due)),
        items[0] if len(items) == 1 else None,
        any(rule.path for rule in known),
    )


def list_of(kind: Any, inside: Sequence[Any]) -> ArgumentRule:
    """The rule of a list, a tuple, or whatever else gives one item after the other. Bytes, texts and dicts are none of
    them, and what gives its items only once is not asked for them."""
    item = any_of([rule_of(one) for one in dict.fromkeys(inside)]) if inside else None

    def fits(value: Any) -> bool:
        if isinstance(value, NO_LIST) or not isinstance(value, Iterable):
            return False
        if getattr(value, "ndim", 1) == 0:
            return False  # an array of one number, which NumPy and torch call iterable
        if kind is not Iterable and not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
            return False  # NumPy's and torch's arrays are no Sequence to Python
        # An iterator's items cannot be looked at without using them up; a range's are alike, however many.
        some = value[:1] if isinstance(value, range) else value
        return item is None or isinstance(value, Iterator) or all(map(item.fits, some))

    of = f" of {joined(tuple(map(of_several, item.due)))}" if item is not None else ""
    return ArgumentRule(fits, (f"a list{of}",), item)


def is_whole(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and index(value) is not None
    except TypeError:
        return False


def words(kind: type) -> str:
    """A class in words: ``a Model (from fm.load)``."""
    name = kind.__name__
    source = f" (from {FROM[name]})" if name in FROM else ""
    return PLAIN.get(name) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}{source}"


def of_several(due: str) -> str:
    """``texts`` of ``a text``, ``Models (from fm.load)`` of ``a Model (from fm.load)``."""
    if not due.startswith(("a ", "an ")):
        return due
    head, bracket, source = due.partition(" ")[2].partition(" (")
    return (
        (head.replace("list of", "lists of") if head.startswith("list of") else head.removesuffix("s") + "s")
        + bracket
        + source
    )


def joined(due: Sequence[str]) -> str:
    """Alternatives in words, None last."""
    ordered = sorted(due, key=lambda one: one == "None")
    return " or ".join(filter(None, [", ".join(ordered[:-1]), ordered[-1]]))
