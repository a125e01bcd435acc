"""How a neuron is named: ``"5.97"``, ``"L5N97"`` or ``(5, 97)``, the same wherever one is asked for.

Below everything and without torch, so that the library and the command line read names by the same rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import index
from typing import Annotated, Any, SupportsIndex

from .errors import InputError, quoted

WHOLE_LAYER = "all"
"""In place of the neuron: every one of the layer."""
SPELLINGS = tuple(
    re.compile(spelling.format(r"(\d{1,18})", rf"(\d{{1,18}}|{WHOLE_LAYER})"), re.ASCII)
    for spelling in (r"{}\.{}", "L{}N{}")
)

NeuronName = Annotated[str | Sequence[SupportsIndex], 'a neuron ("3.17")']
"""A text such as ``"3.17"`` or ``"L3N17"``, or the pair (layer, neuron)."""
NeuronNames = Annotated[Iterable[str | Sequence[SupportsIndex]], 'a list of neurons ("3.17")']


def read_neuron(text: str) -> tuple[int, int]:
    """Layer and neuron of ``3.17`` or ``L3N17``, both counted from 0.

    Raises: InputError: a text that is neither.
    """
    layer, neuron = read_neuron_or_layer(text)
    if neuron is None:
        raise names_none(text)
    return layer, neuron


def read_neuron_or_layer(text: str) -> tuple[int, int | None]:
    """:func:`read_neuron`; or of ``3.all``, which is every neuron of the layer, the layer and None."""
    found = next(filter(None, (spelling.fullmatch(text) for spelling in SPELLINGS)), None)
    if found is None:
        raise names_none(text)
    return int(found[1]), None if found[2] == WHOLE_LAYER else int(found[2])


def names_none(given: object) -> InputError:
    """The one thing to say about what should name a neuron and does not."""
    if isinstance(given, str):
        return InputError(f"{quoted(given)} names no neuron: write LAYER.NEURON, two whole numbers such as 3.17")
    return InputError(f'{quoted(given)} names no neuron: write (layer, neuron), such as (3, 17), or "3.17"')


def is_pair(given: object) -> bool:
    """Whether something is two whole numbers, as opposed to one, or to several names."""
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
        return False
    try:
        return all(index(part) is not None for part in given)
    except TypeError:
        return False


def pair_of(name: Any) -> tuple[SupportsIndex, SupportsIndex]:
    """Layer and neuron of a name, as they were given: a pair may count from the end.

    Raises: InputError: what names no neuron.
    """
    if isinstance(name, str):
        return read_neuron(name)
    if not is_pair(name):
        raise names_none(name)
    layer, neuron = name
    return layer, neuron


def place_of(layer: Any, neuron: SupportsIndex | None = None) -> tuple[SupportsIndex, SupportsIndex]:
    """Layer and neuron, given as two arguments or as one name in place of the first.

    Raises: InputError: a layer without a neuron, or a name and a neuron besides.
    """
    if neuron is None:
        return pair_of(layer)
    if isinstance(layer, str | Sequence):
        raise InputError(f"{quoted(layer)} names layer and neuron: leave out neuron {quoted(neuron)}")
    return layer, neuron
