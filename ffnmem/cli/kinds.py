"""Kinds of what is typed: how a text becomes a layer, a neuron, a token or a number. Without torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Parameter as Option
from cyclopts import Token

from ..core import types
from ..core.errors import InputError, quoted
from ..core.files import check_new_folder
from ..core.neuron_names import WHOLE_LAYER, is_place, layer_of, read_neuron, read_neuron_or_layer
from ..core.token_text import token_id
from .operations import Kind
from .replacing import GRAPH, OWN, check_folder, check_replaceable


def read_layer(typed: str) -> int:
    """A layer by number, or by TransformerLens' name of a place in it."""
    if is_place(typed):
        return layer_of(typed)
    try:
        return int(typed)
    except ValueError:
        raise InputError(f"{quoted(typed)} is no layer: write a whole number, -1 for the last") from None


def read_token(typed: str) -> str | int:
    """A token as text, or by its number: ``id:417``."""
    if not typed.strip(" "):
        raise InputError("the token is empty: name one, such as ' Paris', or its number, such as id:220 for a space")
    number = token_id(typed)
    return typed if number is None else number


def writable(mark: bytes | None) -> Callable[[str], str]:
    """A reader of the name of a file that can be written, by :func:`check_replaceable`."""

    def read(typed: str) -> str:
        check_replaceable(typed, mark)
        return typed

    return read


def out_folder(typed: str) -> str:
    """The name of a folder that can be written to."""
    check_folder(typed)
    return typed


def read_numbers(typed: Sequence[str]) -> list[int]:
    """Whole numbers of ``2,3``."""
    try:
        return [int(number) for number in ",".join(typed).split(",")]
    except ValueError:
        raise InputError(f"{quoted(','.join(typed))}: write whole numbers, such as 2,3") from None


def read_shard(typed: str) -> tuple[int, int]:
    """``i/n``, the i-th of n shards, from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", typed.strip(), re.ASCII)
    if match is None or not int(match[1]) < int(match[2]):
        raise InputError(f"{quoted(typed)} is no shard: write 0/4 for the first of four, up to 3/4")
    return int(match[1]), int(match[2])


def read_removal(typed: str) -> str | float:
    """``zero``, ``mean``, or a number."""
    if typed in ("zero", "mean"):
        return typed
    try:
        return float(typed)
    except ValueError:
        raise InputError(f"{quoted(typed)} is neither zero nor mean nor a number") from None


def read_neurons(typed: Sequence[str]) -> list[Any]:
    """(layer, neuron) of ``3.17`` or ``3.17,3.18``, each once."""
    return list(dict.fromkeys(read_neuron(name.strip()) for name in ",".join(typed).split(",")))


def read_settings(typed: Sequence[str]) -> dict[str, Any]:
    """Settings from several ``name=value``, the value a number, true, false, null or none, or text."""
    settings: dict[str, Any] = {}
    for text in typed:
        name, _, value = text.partition("=")
        if not (name and value):
            raise InputError(f"{quoted(text)} is no setting: write NAME=VALUE, such as steps=100")
        if name in settings:
            raise InputError(f"{name} is given twice: give it once")
        try:
            settings[name] = None if value == "none" else json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


CHANGE = re.compile(r"([^=+]+)(\+=|=x|=)([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)


def read_changes(typed: Sequence[str]) -> list[tuple[str, str, float]]:
    """Neuron, how and number, of ``3.17=0``, ``3.all=x2`` and ``3.17+=1``; several with commas between them."""
    found: dict[str, tuple[str, str, float]] = {}
    for part in (part.strip() for text in typed for part in text.split(",")):
        change = CHANGE.fullmatch(part)
        if change is None:
            raise InputError(
                f"{quoted(part)}: write LAYER.NEURON=NUMBER, such as 3.17=0, or LAYER.{WHOLE_LAYER}=NUMBER"
            )
        read_neuron_or_layer(change[1])  # refuses what names none
        if change[1] in found:
            raise InputError(f"{change[1]} is changed twice: give one change of it")
        found[change[1]] = change[1], change[2], float(change[3])
    return list(found.values())


ONE: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "layer": ("LAYER", read_layer),
    "neuron": ("LAYER.NEURON", lambda typed: read_neuron(typed.strip())),
    "token": ("TOKEN", read_token),
    "graph_file": ("FILE", writable(GRAPH)),
    "new_file": ("FILE", writable(None)),
    "result_file": ("FILE", writable(OWN)),
    "out_folder": ("DIR", out_folder),
    "new_folder": ("DIR", lambda typed: str(check_new_folder(typed))),
    "shard": ("I/N", read_shard),
    "removal": ("zero|mean|NUMBER", read_removal),
}
SEVERAL: Mapping[str, tuple[str, Callable[[Sequence[str]], Any]]] = {
    "settings": ("NAME=VALUE", read_settings),
    "neurons": ("LAYER.NEURON", read_neurons),
    "changes": ("CHANGES", read_changes),
    "folders": ("DIR", list),
    "firings": ("FIRING", lambda typed: [name.strip() for name in ",".join(typed).split(",")]),
    "tokens": ("TOKEN", lambda typed: [read_token(one) for one in typed]),
}
PLAIN: Mapping[str, type] = {"text": str, "path": str, "lens": str, "int": int, "float": float, "bool": bool}


def type_of(kind: Kind) -> Any:
    """The type of an option, as cyclopts takes it; ranges and choices are checked before anything is loaded."""
    many = kind.many
    if kind.name in ONE:
        metavar, one = ONE[kind.name]

        def read(_type: Any, tokens: Sequence[Token]) -> Any:
            texts = [token.value for token in tokens]
            if kind.name == "layer":  # 0,1 as well as 0 1
                texts = ",".join(texts).split(",")
            return [one(text) for text in texts] if many else one(tokens[0].value)

        return Annotated[list[Any] | None if many else Any, option(read, metavar)]
    if kind.name in SEVERAL:
        metavar, several = SEVERAL[kind.name]
        read_all = option(lambda _type, tokens: several([one.value for one in tokens]), metavar)
        if kind.name == "settings":
            return Annotated[list[Any] | dict[str, Any] | None, read_all]
        return Annotated[list[Any] | None, read_all]
    if kind.choices:
        base: Any = Literal[kind.choices]
    else:
        base = PLAIN.get(kind.name) or getattr(types, kind.name)
    checks = (
        [note for note in get_args(base)[1:] if isinstance(note, types.Range)] if get_origin(base) is Annotated else []
    )
    base = get_args(base)[0] if checks else base
    whole: Any = list[base] if many else base
    if many and base is int:  # 2,3 as well as 2 3
        whole = Annotated[list[int], option(lambda _type, tokens: read_numbers([one.value for one in tokens]), "N")]
    if not checks:
        return whole

    def check(_type: Any, value: Any) -> None:
        for one in [] if value is None else value if many else [value]:
            checks[0].check("It", one)

    return Annotated[whole, Option(validator=check)]


def number_name(kind: Kind) -> str | None:
    """What a number is called in help, where it is of a range."""
    alias = getattr(types, kind.name, None)
    base = get_args(alias)[0] if get_origin(alias) is Annotated else None
    return {int: "N", float: "NUMBER"}.get(base)  # type: ignore[arg-type]


def option(read: Callable[[Any, Sequence[Token]], Any], metavar: str) -> Option:
    return Option(converter=read, metavar=metavar, n_tokens=1, allow_leading_hyphen=True)
