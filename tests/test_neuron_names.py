"""A neuron by its name, and the same of it everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, InputTypeError, OutOfRangeError
from ffnmem.core.neuron_names import ExpertSizes, pair_of, place_of, read_neuron_or_layer

from .helpers import refuses


@pytest.mark.parametrize(
    "name", ["5.97", "L5N97", (5, 97), [5, 97], (np.int64(5), np.int64(97)), ("blocks.5.mlp.hook_post", 97)]
)
def test_a_name_is_read(name: Any) -> None:
    assert pair_of(name) == (5, 97) == place_of(name) == place_of(5, 97)


REFUSED: list[tuple[Any, str]] = [
    *(
        (text, f"{text!r} names no neuron")
        for text in (
            "",
            "5",
            "5.",
            ".97",
            "5.97.1",
            "L5.97",
            "5N97",
            "l5n97",
            "-5.97",
            "5,97",
            " 5.97",
            "5.all",
            "٥.٩٧",
        )
    ),
    *((pair, "names no neuron") for pair in ((5,), (1, 2, 3), ("5", 97), (5, None), [[5, 97]], 3)),
    ("blocks.5.mlp.hook_post", "('blocks.5.mlp.hook_post', 17)"),
]


@pytest.mark.parametrize(("name", "says"), REFUSED)
def test_what_names_no_neuron_is_refused_with_what_would(name: Any, says: str) -> None:
    with refuses(InputError, ValueError, says, "17"):
        place_of(name)


def test_a_layer_or_a_neuron() -> None:
    for name in ("5.all", "L5Nall", "blocks.5.mlp.hook_post"):
        assert read_neuron_or_layer(name) == (5, None)
    with refuses(InputError, ValueError, "'5.97' names layer and neuron", "leave out neuron 97"):
        place_of("5.97", 97)
    with refuses(InputError, ValueError, "'blocks.5.hook_mlp_out' is no place of neurons"):
        read_neuron_or_layer("blocks.5.hook_mlp_out")


def test_neurons_of_experts_by_their_names() -> None:
    """Those of the shared experts stand behind all others."""
    sizes = ExpertSizes(experts=3, neurons=4, shared=2)
    names = [sizes.name(neuron) for neuron in range(14)]
    assert [str(names[n]) for n in (0, 5, 12, 13)] == ["e0.0", "e1.1", "s.0", "s.1"]
    assert [sizes.find(name, "layer 1") for name in names] == list(range(14))


class Given(NamedTuple):
    """What is asked about a neuron or a layer."""

    tiny: fm.Model
    store: fm.scanning.Store
    capture: fm.prompts.Capture
    out: Path


@pytest.fixture(scope="module")
def given(tiny: fm.Model, tiny_store: fm.scanning.Store, tmp_path_factory: pytest.TempPathFactory) -> Given:
    return Given(tiny, tiny_store, fm.capture(tiny, "The cat sat on the mat"), tmp_path_factory.mktemp("names"))


def one(place: tuple[Any, ...]) -> Any:
    return place if len(place) == 2 else place[0]


def changed(model: fm.Model, name: Any) -> pd.DataFrame:
    with fm.intervene(model, {name: 2.0}):
        return fm.decompose(fm.capture(model, "The cat sat"), layer=1).to_frame()


NEURONS: dict[str, Callable[..., Any]] = {  # everything that takes layer and neuron, or a name in their place
    "Model.neuron": lambda g, *place: g.tiny.neuron(*place),
    "project": lambda g, *place: fm.project(g.tiny, *place, k=3).to_frame(),
    **{
        f"Store.{name}": lambda g, *place, name=name: getattr(g.store, name)(*place)
        for name in ("index", "stats", "examples", "histogram", "by_token", "by_position", "values")
    },
    "Store.neuron": lambda g, *place: repr(g.store.neuron(*place, k=2).to_dict()),
    "meanings": lambda g, at, n=None: fm.meanings(g.store, at, n, g.tiny, draws=20).examples,
    "describe": lambda g, *place: fm.describe(g.store, one(place), str, shown=4).table,
    "ablate": lambda g, *place: fm.ablate(g.capture, neurons=[one(place)]).neurons,
    "intervene": lambda g, *place: changed(g.tiny, one(place)),
    "read_cards": lambda g, *place: repr(fm.neurons.read_cards(g.store, [one(place)]).to_dict()),
}
LAYERS: dict[str, Callable[..., Any]] = {  # everything that takes a layer
    "Model.layer": lambda g, at: g.tiny.layer(at),
    "Store.layer": lambda g, at: g.store.layer(at),
    "Store.stats": lambda g, at: g.store.stats(at),
    "capture": lambda g, at: fm.capture(g.tiny, "The cat", layers=at).layers,
    "captures": lambda g, at: fm.capture(g.tiny, "The cat", layers=[0, at]).layers,
    "decompose": lambda g, at: fm.decompose(g.capture, at).to_frame(),
    "project": lambda g, at: fm.project(g.tiny, at, k=2).to_frame(),
    "projects": lambda g, at: fm.project(g.tiny, at, 7, k=2).to_frame(),
    "promoters": lambda g, at: fm.vocabulary.promoters(g.tiny, " Paris", layer=at).to_frame(),
    "roles": lambda g, at: fm.roles(g.tiny, layer=at).neurons,
    "geometry": lambda g, at: fm.neurons.geometry(g.tiny, layers=at).to_frame(),
    "polysemanticity": lambda g, at: fm.polysemanticity(g.store, g.tiny, layers=at, draws=20).neurons,
    "second_moment": lambda g, at: fm.editing.second_moment(g.tiny, ["The cat sat on"], layers=[at]).layers,
    "intervene": lambda g, at: changed(g.tiny, (at, None)),
}


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("door", NEURONS)
def test_the_same_neuron_by_whatever_name(door: str, given: Given) -> None:
    """One function that takes another spelling than its neighbours is one that every user trips over."""
    ask = partial(NEURONS[door], given)
    expected = ask(1, 7)
    named: list[Any] = ["1.7", "L1N7", (1, 7), ("blocks.1.mlp.hook_post", 7), ("blocks.1.mlp.out.hook_in", 7)]
    for name in named:
        same(ask(name), expected)
    for wrong, says in (
        (("blocks.1.mlp.hook_pots", 7), "names no layer: perhaps blocks.1.mlp.hook_post"),
        (("blocks.1.hook_resid_post", 7), "is no place of neurons"),
        ("1.x", "'1.x' names no neuron"),
        ("L1.7", "'L1.7' names no neuron"),
    ):
        with refuses(InputError, ValueError, *says.split(": ")):
            ask(wrong)
    with refuses(OutOfRangeError, IndexError, "out of range"):
        ask("1.100000")


@pytest.mark.parametrize("door", LAYERS)
def test_a_layer_by_the_name_of_a_place_in_it(door: str, given: Given) -> None:
    """Who comes with TransformerLens' names would have to translate them, and a misspelt one would be a layer too."""
    ask = partial(LAYERS[door], given)
    expected = ask(1)
    places = ["blocks.1.mlp.hook_post", "blocks.1.mlp.out.hook_in"]
    for place in (*places, *([] if door == "intervene" else ["blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"])):
        same(ask(place), expected)
    with refuses(InputError, ValueError, "'blocks.1.mlp.hook_pots' names no layer", "perhaps blocks.1.mlp.hook_post"):
        ask("blocks.1.mlp.hook_pots")
    with refuses(fm.FfnmemError, Exception, "99"):
        ask("blocks.99.mlp.hook_post")


@pytest.mark.parametrize("where", ["mlp.hook_pre", "mlp.in.hook_out", "mlp.gate.hook_out"])
def test_what_is_in_front_of_the_activation_is_no_coefficient_to_change(tiny: fm.Model, where: str) -> None:
    """Set to 1 there and behind the activation are two interventions: the one must not be taken for the other."""
    place = f"blocks.1.{where}"
    for asked in ({place: 1.0}, {(place, 3): 1.0}):
        with refuses(InputError, ValueError, f"'{place}' is in front", "write blocks.1.mlp.hook_post"):
            fm.intervene(tiny, asked).__enter__()
    with fm.intervene(tiny, {("blocks.1.mlp.out.hook_in", 3): 1.0}):
        assert tiny.interventions == ("1.3 = 1",)
    assert fm.project(tiny, (place, 3), k=1).to_frame()["neuron"].eq(3).all()


def test_several_neurons_come_in_the_order_of_their_names(tiny: fm.Model) -> None:
    """Rows sorted by layer would not stand beside the names that were asked for."""
    named: list[Any] = ["1.7", (0, 3), "L1N2", "1.7"]
    found = fm.project(tiny, named, k=2).to_frame()
    rows = found[["layer", "neuron"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(rows) == [(1, 7), (0, 3), (1, 2)]
    one = fm.project(tiny, 0, 3, k=2).to_frame()
    pd.testing.assert_frame_equal(found[found["layer"] == 0].reset_index(drop=True), one)
    with refuses(InputError, ValueError, "no neuron given"):
        fm.project(tiny, [])


def test_a_wrong_kind_is_named_with_what_is_due(tiny: fm.Model, tiny_store: fm.scanning.Store) -> None:
    with refuses(InputTypeError, TypeError, 'layer must be a whole number or a neuron ("3.17"), not 1.5'):
        tiny_store.values(1.5)  # type: ignore[arg-type]
    with refuses(InputTypeError, TypeError, 'or a neuron ("3.17")', "not None"):
        tiny.neuron(None)  # type: ignore[arg-type]
