"""An operation as its function declares it: what is typed for it, of which kind, by what default, and the words on it.

A public function is the only declaration of an operation. Its signature and its docstring are read from the source, so
that neither torch nor the function's module is imported before a command runs; the help, the manual and the explorer's
forms are all made of this reading.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from ..core import defaults, types

PACKAGE = Path(__file__).resolve().parents[1]
MAKERS = {
    "Model": "ffnmem.cli.makers:read_model",
    "Capture": "ffnmem.cli.makers:read_capture",
    "NeuronChanges": "ffnmem.cli.makers:read_changes",
    "Store": "ffnmem.cli.makers:read_store",
    "Means": "ffnmem.cli.makers:read_means",
    "Fact": "ffnmem.cli.makers:read_fact",
    "Facts": "ffnmem.cli.makers:read_facts",
    "Edit": "ffnmem.cli.makers:read_edit",
    "Concept": "ffnmem.cli.makers:read_concept",
    "Texts": "ffnmem.cli.makers:read_texts",
    "Tokenizer": "ffnmem.cli.makers:read_tokenizer",
    "Ask": "ffnmem.cli.makers:read_ask",
    "ModelOrEdit": "ffnmem.cli.makers:read_second",
    "Rule": "ffnmem.cli.makers:read_rule",
}
"""By the name of a class: the function that makes one of what is typed."""
KINDS = {
    "str": "text",
    "Path": "path",
    "int": "int",
    "SupportsIndex": "int",
    "float": "float",
    "bool": "bool",
    "LayerName": "layer",
    "Layers": "layer",
    "NeuronName": "neuron",
    "NeuronNames": "neurons",
    "Target": "token",
    "Targets": "token",
    "Tokens": "tokens",
    "Lens": "lens",
    "ConfigSource": "text",
    "TextSource": "path",
    "FiringNames": "firings",
    "ChangeNames": "changes",
    "Removal": "removal",
    "GraphFile": "graph_file",
    "OrdinaryText": "text",
    "OtherFacts": "text",
    "ModelSource": "text",
    "NewFile": "new_file",
    "NewFolder": "new_folder",
    "ResultFile": "result_file",
    "Settings": "settings",
    "OutFolder": "out_folder",
    "Shard": "shard",
    "Stores": "folders",
}
"""By the name of an annotation: what is typed for it, a kind of :mod:`ffnmem.cli.kinds`."""
MANY = ("Sequence", "Iterable", "Collection", "tuple", "list")
ORDER = ("tokens", "firings", "neurons", "neuron", "layer", "token", "float", "int", "text", "bool")
"""Of the members of a union, the first is what is typed."""
NEURONS = ("neuron", "neurons")
"""Kinds that name layer and neuron: beside a parameter ``layer`` of one of them, ``neuron`` is not typed."""
NOT_TYPED = ("progress", "batch_tokens", "keep_edits", "k")
"""``k``, how many rows a result has at most, is what --top says."""
SETTINGS = ("Examples", "PageTokens")
"""Kinds of what is typed though it has one of these names."""
WRITTEN = ("out_folder", "new_folder")
"""Kinds of what is written, which is given by name."""
READ = ("text", "documents")
"""What says how texts are read is for their maker alone."""
IN_PYTHON = " In Python,"
"""What begins the last words on a parameter, where they are of nothing that can be typed."""


@dataclass(frozen=True)
class Kind:
    """What is typed for a parameter: the name of a kind, of an alias in :mod:`ffnmem.core.types` or of a class with a
    maker, or "" where nothing of it can be typed; whether several may be; and the values that it may have, where these
    stand in the signature."""

    name: str = ""
    many: bool = False
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A parameter as it is typed. ``default``, ``help``: as they are shown, empty where there is none; ``of``: the
    class of what a maker makes of it, where that is so."""

    name: str
    kind: Kind
    required: bool
    default: str
    help: str
    of: str = ""

    @property
    def typed_as(self) -> str:
        """Its name for who types it: ``layer`` may take neurons, which name their layer."""
        return self.kind.name if self.name == "layer" and self.kind.name in NEURONS else self.name

    @property
    def is_given(self) -> bool:
        """Whether it is not typed, but what all commands have."""
        return self.name in NOT_TYPED and self.kind.name not in SETTINGS

    @property
    def by_place(self) -> bool:
        """Whether it is given by its place: what is required and is neither written nor a scan nor who is asked, and
        neurons in place of a layer."""
        written = self.kind.name in WRITTEN or self.of in ("Store", "Ask")
        return (self.required and not written) or self.typed_as != self.name


@dataclass(frozen=True)
class Operation:
    """A public function, as its source declares it.

    Attributes:
        path: ``"ffnmem.prompts.attribution:attribute"``.
        short, long: the docstring's first line, and what stands between it and the arguments.
        examples: lines of its section ``Example:``. returns: the name of its result's class.
    """

    path: str
    short: str
    long: str
    parameters: tuple[Parameter, ...]
    examples: tuple[str, ...]
    returns: str

    @property
    def shows(self) -> bool:
        """Whether it gives a result that is shown, and not only the path of what it wrote."""
        return self.returns not in ("None", "Path")

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        module, _, name = self.path.partition(":")
        return typing.cast("Callable[..., Any]", getattr(import_module(module), name))

    @cached_property
    def made(self) -> Mapping[str, tuple[Operation, Mapping[str, str]]]:
        """By parameter that a maker makes: the maker, and the options of its parameters. One for which a single text is
        typed has the parameter's own name: ``--mean DIR``."""
        found = {}
        for one in self.parameters:
            if one.kind.name in MAKERS and not self.is_held(one):
                maker = operation(MAKERS[one.kind.name])
                names = ["store"] if self.names_model(one) else [part.name for part in maker.typed()]
                own = len(names) == 1
                found[one.name] = maker, {name: one.name if own else name for name in names}
        return found

    def typed(self, given: Collection[str] = ()) -> Iterator[Parameter]:
        """What is typed for it: its parameters, in place of one that a maker makes those of the maker. Two of one name
        are one option if of one kind; else the one that is required stays, or that of the function, and the other
        cannot be typed.

        ``given``: names of classes of which nothing need be typed."""
        found: dict[str, Parameter] = {}
        named = any(one.typed_as != one.name for one in self.parameters)
        for one in self.parameters:
            if one.kind.name in given or (named and one.name == "neuron") or self.is_held(one):
                continue
            if one.name not in self.made:
                if one.kind.name and not one.is_given:
                    found.setdefault(one.name, one)
                continue
            if (
                one.kind.name == "Model"
                and not one.required
                and not any(x.kind.name == "Store" for x in self.parameters)
            ):
                continue
            maker, names = self.made[one.name]
            for part in (part for part in maker.typed(given) if part.name in names):
                if self.is_own(names[part.name], part):
                    continue
                required = part.required and one.required
                found[names[part.name]] = replace(
                    part,
                    name=names[part.name],
                    required=required,
                    help=one.help if self.names_model(one) else part.help or one.help,
                    of=part.of or one.kind.name,
                )
        yield from found.values()

    def call(self, values: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
        """Its result for what was typed. ``given``: by the name of a class what need not be made, and by its own name
        what is not typed."""
        kinds = {one.name: one.kind for one in self.typed()}
        told = READ if any(one.kind.name == "Texts" for one in self.parameters) else ()
        arguments: dict[str, Any] = {}
        for one in sorted(self.parameters, key=self.needs_model):  # what is refused is refused before one is loaded
            if one.kind.name in given:
                arguments[one.name] = given[one.kind.name]
            elif one.name in self.made:
                maker, names = self.made[one.name]
                needed = [names[part.name] for part in maker.typed() if part.required] or names.values()
                if one.required or any(name in values for name in needed):
                    typed = {
                        part.name: values[names[part.name]]
                        for part in maker.typed()
                        if names.get(part.name) in values and not self.is_own(names[part.name], part)
                    }
                    arguments[one.name] = maker.call(typed, given)
                    if all(own == name for own, name in names.items()):  # for the next one the same is typed
                        given = {**given, one.kind.name: arguments[one.name]}
            elif one.is_given:
                if given.get(one.name) is not None:
                    arguments[one.name] = given[one.name]
            elif one.typed_as in values and kinds.get(one.name) == one.kind and one.name not in told:
                arguments[one.name] = values[one.typed_as]
        return self.load()(**arguments)

    def names_model(self, one: Parameter) -> bool:
        """Whether a parameter is a scan beside the model that was scanned, which need not be said of both."""
        return one.kind.name == "Store" and any(
            other.kind.name == "Model" and not self.is_held(other) for other in self.parameters
        )

    def is_held(self, one: Parameter) -> bool:
        """Whether a parameter is the model of a scan, where the scan that is typed brings it along."""
        optional = one.kind.name == "Model" and not one.required
        return optional and any(other.kind.name == "Store" and other.required for other in self.parameters)

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse before anything is loaded what needs no model to be refused: by ``check_NAME``, a function of some of
        its parameters that stands beside a function of that name; makers have such ones too."""
        module, _, name = self.path.partition(":")
        refuse = getattr(import_module(module), f"check_{name}", None)
        if refuse is not None:
            refuse(**{name: values[name] for name in inspect.signature(refuse).parameters if name in values})
        for maker, names in self.made.values():
            maker.check({own: values[name] for own, name in names.items() if name in values})

    def is_own(self, name: str, part: Parameter) -> bool:
        """Whether an option is a parameter of its own, of another kind than that of a maker."""
        own = next((one for one in self.parameters if one.name == name and name not in self.made), None)
        own = None if own is not None and self.is_held(own) else own
        return own is not None and own.kind != part.kind and not part.required

    def needs_model(self, one: Parameter) -> bool:
        """Whether a model is loaded for a parameter."""
        maker, _ = self.made.get(one.name, (None, None))
        return one.kind.name == "Model" or (maker is not None and any(map(maker.needs_model, maker.parameters)))


# -- reading the source ----------------------------------------------------------------------------------------------


def source_text(module: str) -> str:
    """A module of this package."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text("utf-8")


@cache
def source(module: str) -> ast.Module:
    """A module of this package, parsed."""
    return ast.parse(source_text(module))


def short(path: str) -> str:
    """The first line of a function's docstring, found without parsing its module, which takes long of forty."""
    module, _, name = path.partition(":")
    found = re.search(rf'^def {name}\(.*?:\n    """(.+?)(?:\n\n|""")', source_text(module), re.M | re.S)
    return clean(" ".join(found[1].split())) if found else ""


@cache
def operation(path: str) -> Operation:
    """What the source says of a function."""
    module, _, name = path.partition(":")
    body: Any = [node for node in source(module).body if getattr(node, "name", "") == name][-1]  # behind overloads
    text = ast.get_docstring(body) or ""
    words = argument_words(text)
    named = [*body.args.posonlyargs, *body.args.args]
    defaults = [*[None] * (len(named) - len(body.args.defaults)), *body.args.defaults, *body.args.kw_defaults]
    parameters = []
    for one, default in zip([*named, *body.args.kwonlyargs], defaults, strict=True):
        kind = kind_of(one.annotation, module)
        about = words.get(one.arg, "")
        if not about or about.startswith("as :func:"):
            about = inherited(one.arg, about or text) or about
        about = clean(about.partition(IN_PYTHON)[0])
        parameters.append(Parameter(one.arg, kind, default is None, shown_default(default, module), about))
    before = re.split(rf"\n(?:{'|'.join(SECTIONS)}):", text, maxsplit=1)[0]
    short, _, long = before.partition("\n\n")
    example = re.search(r"\nExamples?:\n((?:    .*\n?|\n)+)", text)
    lines = tuple(line.removeprefix("    ") for line in example[1].rstrip().split("\n")) if example else ()
    returns = ast.unparse(body.returns) if body.returns is not None else "None"
    return Operation(
        path, clean(" ".join(short.split())), clean(long.strip()), tuple(parameters), lines, returns.strip("'\"")
    )


SECTIONS = ("Args", "Returns", "Raises", "Source", "Example", "Examples", "Note", "Attributes")


def argument_words(text: str) -> dict[str, str]:
    """By name, what a docstring's ``Args:`` says of a parameter; several names may share one entry."""
    section = re.search(r"^Args:\n((?: .*\n?|\n)+)", text, re.M)
    found: dict[str, str] = {}
    for names, words in re.findall(
        r"^    (\*{0,2}\w[\w, ]*): (.*(?:\n {8,}.*|\n(?=\n* {8}))*)", section[1] if section else "", re.M
    ):
        found |= dict.fromkeys(names.split(", "), " ".join(words.split()))
    return found


def inherited(name: str, text: str) -> str:
    """What another function's docstring says of a parameter, where this one's says "as :func:`ffnmem.other` …"."""
    for other in re.findall(r"as :func:`~?ffnmem\.(?:\w+\.)?(\w+)`", text):
        path = path_of(other)
        if path is not None:
            return next((one.help for one in operation(path).parameters if one.name == name), "")
    return ""


@cache
def path_of(name: str) -> str | None:
    """The path of a function by its public name."""
    for stub in (PACKAGE / "__init__.pyi", *sorted(PACKAGE.glob("*/__init__.pyi"))):
        found = re.search(rf"^from \.([\w.]+) import {name} as {name}$", stub.read_text("utf-8"), re.M)
        if found is not None:
            folder = "" if stub.parent == PACKAGE else f".{stub.parent.name}"
            return f"ffnmem{folder}.{found[1]}:{name}"
    return None


def lookup(name: str, module: str) -> tuple[ast.expr, str] | None:
    """What a name is assigned in a module, or where it is imported from; and the module in which that stands."""
    for node in source(module).body:
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            for one in node.names:
                if name == (one.asname or one.name):
                    return lookup(one.name, ".".join([*module.split(".")[: -node.level], node.module]))
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for left, given in pairs:
                if isinstance(left, ast.Name) and left.id == name:
                    return given, module
    return None


def shown_default(default: ast.expr | None, module: str) -> str:
    """A default as it is shown: a name of a module as what it stands for; nothing for None and what is empty."""
    if isinstance(default, ast.Name):
        known = getattr(types, default.id, getattr(defaults, default.id, None))
        if known is not None:
            return str(known)
        found = lookup(default.id, module)
        return "" if found is None else shown_default(*found)
    text = "" if default is None else ast.unparse(default).strip("'\"")
    text = text[1:-1] if isinstance(default, ast.Tuple) else text
    return "" if text == "None" else text.replace("_000", ",000")


def kind_of(annotation: ast.expr | None, module: str) -> Kind:
    """What is typed for an annotation."""
    match annotation:
        case ast.Constant(value=str() as text):
            return kind_of(ast.parse(text, mode="eval").body, module)
        case ast.BinOp():
            found = [one for side in (annotation.left, annotation.right) if (one := kind_of(side, module)).name]
            if {one.name for one in found} >= {"text", "int"} and not any(one.many for one in found):
                return Kind("token")
            found.sort(key=lambda one: ORDER.index(one.name) if one.name in ORDER else -1)
            return next((one for one in found if one.many), found[0] if found else Kind())
        case ast.Subscript(value=ast.Name(id="Literal")):
            return Kind("choice", choices=ast.literal_eval(annotation.slice) if isinstance(annotation.slice, ast.Tuple)
                        else (ast.literal_eval(annotation.slice),))  # fmt: skip
        case ast.Subscript(value=ast.Name(id=name)) if name in MANY:
            inner = annotation.slice
            one = kind_of(inner.elts[0] if isinstance(inner, ast.Tuple) else inner, module)
            return replace(one, many=bool(one.name))
        case ast.Name(id=name):
            if name in KINDS or name in MAKERS:
                return Kind(KINDS.get(name, name))
            alias = getattr(types, name, None)
            if typing.get_origin(alias) in (Literal, Annotated):
                return Kind(name)
            found_at = lookup(name, module) if name[:1].isupper() else None
            return Kind() if found_at is None else kind_of(*found_at)
    return Kind()


def clean(text: str) -> str:
    """A docstring's words without its markup."""
    text = re.sub(
        r":\w+:`~?\.?(?:ffnmem\.(?:\w+\.)*)?([^`]*)`|``([^`]*)``", lambda found: found[1] or found[2] or "", text
    )
    return text.replace("\\|", "|")
