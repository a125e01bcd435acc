"""How a neuron is named: ``"5.97"``, ``"L5N97"`` or ``(5, 97)``, the same wherever one is asked for, that of an expert
also ``"5.e3.97"``, or ``"5.s.97"`` where experts are shared; and a layer by TransformerLens' name of a place in it,
``"blocks.5.mlp.hook_post"``.

Below everything and without torch, so that the library and the command line read names by the same rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import groupby
from operator import index
from typing import Annotated, Any, NamedTuple, SupportsIndex, TypeGuard

from .errors import InputError, InputTypeError, OutOfRangeError, check_index, quoted

WHOLE_LAYER = "all"
"""In place of the neuron: every one of the layer."""
SPELLINGS = tuple(
    re.compile(spelling.format(r"(\d{1,18})", rf"(\d{{1,18}}|{WHOLE_LAYER})"), re.ASCII)
    for spelling in (r"{}\.{}", "L{}N{}")
)

OF_EXPERT = re.compile(r"(\d{1,18})\.(?:e(\d{1,18})|s)\.(\d{1,18})", re.ASCII)

NeuronName = Annotated[str | Sequence[SupportsIndex | str], 'a neuron ("3.17")']
"""A text such as ``"3.17"`` or ``"L3N17"``, or the pair (layer, neuron), where the layer may be a place in it."""
NeuronNames = Annotated[Iterable[str | Sequence[SupportsIndex | str]], 'a list of neurons ("3.17")']


LayerName = Annotated[SupportsIndex | str, "a whole number"]
"""A layer's index, or a place in it by TransformerLens' name."""

HOOKS = {
    "pre": "mlp.hook_pre",
    "linear": "mlp.hook_pre_linear",
    "coefficients": "mlp.hook_post",
    "ffn_in": "mlp.hook_in",
    "ffn_out": "mlp.out.hook_out",  # mlp.hook_out has the residual stream in it where an FFN adds it (Bloom, MPT)
    "added": "hook_mlp_out",  # behind the norm behind the FFN, where there is one
    "attention": "hook_attn_out",
    "resid_pre": "hook_resid_pre",
    "resid_post": "hook_resid_post",
}
"""TransformerLens' name of each part of a layer, behind ``blocks.3.``: as in its ``HookedTransformer``, where that had
one, and in the ``TransformerBridge``'s caches."""
PARTS = {hook: part for part, hook in HOOKS.items()} | {  # the bridge's own names
    "mlp.gate.hook_out": "pre",
    "mlp.in.hook_in": "ffn_in",
    "mlp.in.hook_out": "linear",  # which is the pre-activation where nothing is gated
    "mlp.out.hook_in": "coefficients",
    "mlp.hook_out": "ffn_out",
    "hook_in": "resid_pre",
    "hook_out": "resid_post",
}
OF_NEURONS = ("pre", "linear", "coefficients")
PLACE = re.compile(r"blocks\.(\d{1,18})\.(.+)", re.ASCII)


def is_place(name: object) -> TypeGuard[str]:
    """Whether something is meant as TransformerLens' name of a place, be it spelled right or not."""
    return isinstance(name, str) and ("hook" in name or name.startswith("blocks."))


def read_place(name: str) -> tuple[str, int] | None:
    """The part and the layer of a place by TransformerLens' name; None where there is none of that name."""
    found = PLACE.fullmatch(name)
    return None if found is None or found[2] not in PARTS else (PARTS[found[2]], int(found[1]))


def nearest(name: str) -> str:
    """The places whose names are like a misspelt one, for a message; empty if none is."""
    layer = re.search(r"\d{1,18}", name, re.ASCII)
    near = get_close_matches(name, [f"blocks.{layer[0] if layer else 0}.{hook}" for hook in PARTS], 2, 0.8)
    return f" (perhaps {' or '.join(near)})" if near else ""


def layer_of(layer: Any, n_layers: int | None = None) -> Any:
    """A layer that is named by a place in it as its index; anything but a text as it is.

    Raises: InputError: a place that there is not, with those that are called nearly so, or one above the last layer.
    """
    if not isinstance(layer, str):
        return layer
    place = read_place(layer)
    if place is not None and (n_layers is None or place[1] < n_layers):
        return place[1]
    if not is_place(layer):
        raise InputTypeError(
            f"layer must be a whole number, or a place in it such as blocks.3.mlp.hook_post, not {quoted(layer)}"
        )
    known = "such as blocks.3.mlp.hook_post"
    if n_layers is not None:
        known = f"blocks.0.mlp.hook_post to blocks.{n_layers - 1}.mlp.hook_post"
    near = nearest(layer) if place is None else ""
    raise InputError(f"{quoted(layer)} names no layer: TransformerLens' names are {known}{near}")


def layer_of_neurons(layer: Any) -> Any:
    """:func:`layer_of`, for what is said to have neurons; raises InputError for a place that has none."""
    found = layer_of(layer)
    place = read_place(layer) if isinstance(layer, str) else None
    if place is not None and place[0] not in OF_NEURONS:
        raise InputError(f"{quoted(layer)} is no place of neurons: write blocks.{found}.mlp.hook_post")
    return found


def layer_of_coefficients(layer: Any) -> Any:
    """:func:`layer_of_neurons`, for what changes coefficients.

    Raises: InputError: a place in front of the activation, where the same number would mean something else.
    """
    found = layer_of_neurons(layer)
    place = read_place(layer) if isinstance(layer, str) else None
    if place is not None and place[0] != "coefficients":
        raise InputError(
            f"{quoted(layer)} is in front of the activation, and what is changed is behind it: "
            f"write blocks.{found}.mlp.hook_post"
        )
    return found


@dataclass(frozen=True)
class ExpertNeuron:
    """A neuron by its number in an expert, or in the shared ones (None), until it meets a layer's sizes."""

    expert: int | None
    neuron: int

    def __str__(self) -> str:
        return f"{'s' if self.expert is None else f'e{self.expert}'}.{self.neuron}"

    def __index__(self) -> int:
        raise InputError(f"{self} is a neuron of an expert: write LAYER.NEURON where there are none")


class ExpertSizes(NamedTuple):
    """How many experts a layer has, how many neurons each of them, and how many the shared ones."""

    experts: int
    neurons: int
    shared: int

    def find(self, name: ExpertNeuron, of: str) -> int:
        """The index in the layer. Raises: OutOfRangeError: no such expert, or no such neuron in it."""
        if name.expert is None:
            if self.shared == 0:
                raise OutOfRangeError(f"{of} has no shared experts: write LAYER.eEXPERT.NEURON, such as 3.e1.17")
            shared = check_index("neuron", name.neuron, self.shared, f"the group of shared experts of {of}")
            return self.experts * self.neurons + shared
        expert = check_index("expert", name.expert, self.experts, of)
        return expert * self.neurons + check_index("neuron", name.neuron, self.neurons, f"expert {expert} of {of}")

    def name(self, neuron: int) -> ExpertNeuron:
        """A neuron's name by its index in the layer."""
        expert = min(neuron // self.neurons, self.experts)
        return ExpertNeuron(None if expert == self.experts else expert, neuron - expert * self.neurons)


def neuron_index(neuron: SupportsIndex, d_mlp: int, experts: ExpertSizes | None, of: str) -> int:
    """A neuron's index in its layer, by the layer's sizes. Raises: OutOfRangeError."""
    if isinstance(neuron, ExpertNeuron):
        if experts is None:
            raise InputError(f"{neuron} is a neuron of an expert, and {of} has no experts: write LAYER.NEURON")
        return experts.find(neuron, of)
    return check_index("neuron", neuron, d_mlp, of)


Experts = Mapping[int, ExpertSizes]
"""The sizes of layers with experts, by layer."""
OF_LAYERS = re.compile(r"(\d+)-(\d+): (\d+) x (\d+)(?: \+ (\d+) shared)?", re.ASCII)


def describe_experts(sizes: Sequence[ExpertSizes | None]) -> str:
    """The experts of a model's layers in words, as a provenance has them: ``"1-26: 64 x 1408 + 2816 shared"``."""
    found, first = [], 0
    for one, group in groupby(sizes):
        last = first + len(list(group)) - 1
        if one is not None:
            shared = f" + {one.shared} shared" if one.shared else ""
            found.append(f"{first}-{last}: {one.experts} x {one.neurons}{shared}")
        first = last + 1
    return ", ".join(found)


@cache
def read_experts(text: str) -> Experts:
    """What :func:`describe_experts` says; empty for an empty text."""
    return {
        layer: ExpertSizes(experts, neurons, shared)
        for first, last, experts, neurons, shared in (map(int, one.groups("0")) for one in OF_LAYERS.finditer(text))
        for layer in range(first, last + 1)
    }


def add_experts(frame: Any, experts: Experts) -> Any:
    """A DataFrame with a column ``expert`` behind ``neuron``, the place in ``model.ffn[layer].experts`` (missing in
    dense layers), if it is of neurons, their model has experts and it has no such column yet."""
    is_named = {"layer", "neuron"} <= {*frame} and frame["neuron"].dtype.kind in "iu"
    if not experts or not is_named or "expert" in frame:
        return frame
    width, shared = (frame["layer"].map({at: one[part] for at, one in experts.items()}) for part in (1, 0))
    expert = (frame["neuron"] // width).clip(upper=shared).where(frame["neuron"] >= 0).astype("Int64")
    frame.insert(frame.columns.get_loc("neuron") + 1, "expert", expert)
    return frame


def read_neuron(text: str) -> tuple[int, SupportsIndex]:
    """Layer and neuron of ``3.17`` or ``L3N17``, both counted from 0, or of ``3.e1.17`` or ``3.s.17``.

    Raises: InputError: a text that is neither.
    """
    if is_place(text):
        layer_of_neurons(text)
        raise names_none(text)
    layer, neuron = read_neuron_or_layer(text)
    if neuron is None:
        raise names_none(text)
    return layer, neuron


def read_neuron_or_layer(text: str) -> tuple[int, SupportsIndex | None]:
    """:func:`read_neuron`; or the layer and None of ``3.all`` or ``blocks.3.mlp.hook_post``: all neurons there."""
    if is_place(text):
        return layer_of_coefficients(text), None
    if expert := OF_EXPERT.fullmatch(text):
        return int(expert[1]), ExpertNeuron(None if expert[2] is None else int(expert[2]), int(expert[3]))
    found = next(filter(None, (spelling.fullmatch(text) for spelling in SPELLINGS)), None)
    if found is None:
        raise names_none(text)
    return int(found[1]), None if found[2] == WHOLE_LAYER else int(found[2])


def names_none(given: object) -> InputError:
    """The one thing to say about what should name a neuron and does not."""
    if is_place(given):
        return InputError(f"{quoted(given)} names no neuron: write ({quoted(given)}, 17)")
    if isinstance(given, str):
        return InputError(f"{quoted(given)} names no neuron: write LAYER.NEURON, such as 3.17, or 3.e1.17 in expert 1")
    return InputError(f'{quoted(given)} names no neuron: write (layer, neuron), such as (3, 17), or "3.17"')


def is_pair(given: object) -> bool:
    """Whether something is a layer and a whole number, as opposed to one number, or to several names."""
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
        return False
    layer, neuron = given
    try:
        is_neuron = isinstance(neuron, ExpertNeuron) or index(neuron) is not None
        return is_neuron and (is_place(layer) or index(layer) is not None)
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
    return layer_of_neurons(layer), neuron


def place_of(layer: Any, neuron: SupportsIndex | None = None) -> tuple[SupportsIndex, SupportsIndex]:
    """Layer and neuron, given as two arguments or as one name in place of the first.

    Raises: InputError: a layer without a neuron, or a name and a neuron besides.
    """
    if neuron is None:
        return pair_of(layer)
    if is_place(layer):
        return layer_of_neurons(layer), neuron
    if isinstance(layer, str | Sequence):
        raise InputError(f"{quoted(layer)} names layer and neuron: leave out neuron {quoted(neuron)}")
    return layer, neuron
