"""A neuron by its name, and the same of it everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError, InputTypeError, OutOfRangeError
from ffnmem.core.neuron_names import is_pair, pair_of, place_of, read_neuron, read_neuron_or_layer
from ffnmem.vocabulary import read_projection

from .helpers import refuses


@pytest.mark.parametrize(
    "name", ["5.97", "L5N97", (5, 97), [5, 97], (np.int64(5), np.int64(97)), ("blocks.5.mlp.hook_post", 97)]
)
def test_a_name_is_read(name: Any) -> None:
    assert pair_of(name) == (5, 97) == place_of(name) == place_of(5, 97)


@pytest.mark.parametrize(
    "text", ["", "5", "5.", ".97", "5.97.1", "L5.97", "5N97", "l5n97", "-5.97", "5,97", " 5.97", "5.all", "٥.٩٧", "x"]
)
def test_what_names_no_neuron_is_refused_with_what_would(text: str) -> None:
    with refuses(InputError, ValueError, f"{text!r} names no neuron", "LAYER.NEURON", "3.17"):
        read_neuron(text)


@pytest.mark.parametrize("name", [(5,), (1, 2, 3), ("5", 97), (5, None), [[5, 97]]])
def test_a_pair_is_two_whole_numbers(name: Any) -> None:
    assert not is_pair(name)
    with refuses(InputError, ValueError, "names no neuron", "(3, 17)"):
        pair_of(name)


def test_a_whole_layer_is_all() -> None:
    assert read_neuron_or_layer("5.all") == (5, None) == read_neuron_or_layer("L5Nall")


def test_a_neuron_named_twice_is_refused() -> None:
    with refuses(InputError, ValueError, "'5.97' names layer and neuron", "leave out neuron 97"):
        place_of("5.97", 97)
    with refuses(InputError, ValueError, "3 names no neuron"):
        place_of(3)


Ask = Callable[..., Any]


def asking(tiny: fm.Model, store: fm.scanning.Store, out: Path) -> dict[str, Ask]:
    """Everything that takes layer and neuron, or a name in their place."""
    found = fm.capture(tiny, "The cat sat on the mat")
    file = fm.project(tiny, out=out / "all.parquet", k=2)
    return {
        "Model.neuron": tiny.neuron,
        "project": lambda *place: fm.project(tiny, *place, k=3),
        "projection_null": lambda *place: fm.vocabulary.projection_null(tiny, *place, draws=5),
        "read_projection": lambda *place: read_projection(file, *place),
        "Store.index": store.index,
        "Store.stats": store.stats,
        "Store.examples": lambda *place: store.examples(*place, k=2),
        "Store.histogram": store.histogram,
        "Store.by_token": store.by_token,
        "Store.by_position": store.by_position,
        "Store.values": store.values,
        "Store.neuron": lambda *place: repr(store.neuron(*place, k=2).to_dict()),
        "meanings": lambda at, n=None: fm.meanings(store, at, n, tiny, draws=20).examples,
        "describe": lambda *place: fm.describe(store, place if len(place) == 2 else place[0]).table,
        "ablate": lambda *place: fm.ablate(found, neurons=[place if len(place) == 2 else place[0]]).neurons,
        "intervene": lambda *place: changed(tiny, place if len(place) == 2 else place[0]),
        "neuron_report": lambda *place: reported(store, place if len(place) == 2 else place[0], out / "cards.html"),
    }


def changed(model: fm.Model, name: Any) -> pd.DataFrame:
    with fm.intervene(model, {name: 2.0}):
        return fm.decompose(fm.capture(model, "The cat sat"), layer=1)


def reported(store: fm.scanning.Store, name: Any, out: Path) -> str:
    return fm.pages.neurons(store, [name], out).read_text("utf-8")


ASKING = (
    "Model.neuron", "project", "projection_null", "read_projection", "Store.index", "Store.stats", "Store.examples",
    "Store.histogram", "Store.by_token", "Store.by_position", "Store.values", "Store.neuron", "meanings", "describe",
    "ablate", "intervene", "neuron_report",
)  # fmt: skip


@pytest.mark.parametrize("door", ASKING)
def test_the_same_neuron_by_whatever_name(
    door: str, tiny: fm.Model, tiny_store: fm.scanning.Store, tmp_path: Path
) -> None:
    """One function that takes another spelling than its neighbours is one that every user trips over."""
    doors = asking(tiny, tiny_store, tmp_path)
    assert tuple(doors) == ASKING
    ask = doors[door]
    expected = ask(1, 7)
    named: list[Any] = ["1.7", "L1N7", (1, 7), ("blocks.1.mlp.hook_post", 7), ("blocks.1.mlp.out.hook_in", 7)]
    for name in named:
        found = ask(name)
        if isinstance(expected, pd.DataFrame):
            pd.testing.assert_frame_equal(found, expected)
        else:
            assert found == expected
    with refuses(InputError, ValueError, "'blocks.1.mlp.hook_pots' names no layer", "perhaps blocks.1.mlp.hook_post"):
        ask(("blocks.1.mlp.hook_pots", 7))
    with refuses(InputError, ValueError, "'blocks.1.hook_resid_post' is no place of neurons", "blocks.1.mlp.hook_post"):
        ask(("blocks.1.hook_resid_post", 7))
    for wrong in ("1.x", "L1.7"):
        with refuses(InputError, ValueError, f"{wrong!r} names no neuron"):
            ask(wrong)
    if door != "read_projection":  # which has no rows of it
        with refuses(OutOfRangeError, IndexError, "out of range"):
            ask("1.100000")


def layers(tiny: fm.Model, store: fm.scanning.Store, out: Path) -> dict[str, Ask]:
    """Everything that takes a layer."""
    found = fm.capture(tiny, "The cat sat on the mat")
    file = fm.project(tiny, out=out / "all.parquet", k=2)
    return {
        "Model.layer": tiny.layer,
        "Store.layer": store.layer,
        "Store.stats": store.stats,
        "capture": lambda at: fm.capture(tiny, "The cat", layers=at).layers,
        "captures": lambda at: fm.capture(tiny, "The cat", layers=[0, at]).layers,
        "decompose": lambda at: fm.decompose(found, at),
        "project": lambda at: fm.project(tiny, at, k=2),
        "projects": lambda at: fm.project(tiny, at, 7, k=2),
        "read_projection": lambda at: read_projection(file, at),
        "promoters": lambda at: fm.vocabulary.promoters(tiny, " Paris", layer=at),
        "roles": lambda at: fm.roles(tiny, layer=at),
        "geometry": lambda at: fm.neurons.geometry(tiny, layers=at).to_frame(),
        "polysemanticity": lambda at: fm.polysemanticity(store, tiny, layers=at, draws=20),
        "second_moment": lambda at: fm.editing.second_moment(tiny, ["The cat sat on"], layers=[at]).layers,
        "intervene": lambda at: changed(tiny, (at, None)),
    }


LAYERS = (
    "Model.layer", "Store.layer", "Store.stats", "capture", "captures", "decompose", "project", "projects",
    "read_projection", "promoters", "roles", "geometry", "polysemanticity", "second_moment", "intervene",
)  # fmt: skip


@pytest.mark.parametrize("door", LAYERS)
def test_a_layer_by_the_name_of_a_place_in_it(
    door: str, tiny: fm.Model, tiny_store: fm.scanning.Store, tmp_path: Path
) -> None:
    """Who comes with TransformerLens' names would have to translate them, and a misspelt one would be a layer too."""
    doors = layers(tiny, tiny_store, tmp_path)
    assert tuple(doors) == LAYERS
    ask = doors[door]
    expected = ask(1)
    places = ["blocks.1.mlp.hook_post", "blocks.1.mlp.out.hook_in"]
    for place in (*places, *([] if door == "intervene" else ["blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"])):
        found = ask(place)
        if isinstance(expected, pd.DataFrame):
            pd.testing.assert_frame_equal(found, expected)
        else:
            assert found == expected
    with refuses(InputError, ValueError, "'blocks.1.mlp.hook_pots' names no layer", "perhaps blocks.1.mlp.hook_post"):
        ask("blocks.1.mlp.hook_pots")
    if door == "read_projection":
        assert ask("blocks.99.mlp.hook_post").empty
    else:
        with refuses(fm.FfnmemError, Exception, "99"):
            ask("blocks.99.mlp.hook_post")


def test_a_place_alone_is_a_whole_layer_and_no_neuron() -> None:
    assert read_neuron_or_layer("blocks.5.mlp.hook_post") == (5, None)
    with refuses(InputError, ValueError, "names no neuron", "('blocks.5.mlp.hook_post', 17)"):
        pair_of("blocks.5.mlp.hook_post")
    with refuses(InputError, ValueError, "'blocks.5.hook_mlp_out' is no place of neurons"):
        read_neuron_or_layer("blocks.5.hook_mlp_out")


@pytest.mark.parametrize("where", ["mlp.hook_pre", "mlp.in.hook_out", "mlp.gate.hook_out"])
def test_what_is_in_front_of_the_activation_is_no_coefficient_to_change(tiny: fm.Model, where: str) -> None:
    """Set to 1 there and behind the activation are two interventions: the one must not be taken for the other."""
    place = f"blocks.1.{where}"
    for asked in ({place: 1.0}, {(place, 3): 1.0}):
        with refuses(InputError, ValueError, f"'{place}' is in front", "write blocks.1.mlp.hook_post"):
            fm.intervene(tiny, asked).__enter__()
    with fm.intervene(tiny, {("blocks.1.mlp.out.hook_in", 3): 1.0}):
        assert tiny.interventions == ("1.3 = 1",)
    assert fm.project(tiny, (place, 3), k=1)["neuron"].eq(3).all()


def test_several_neurons_come_in_the_order_of_their_names(tiny: fm.Model) -> None:
    """Rows sorted by layer would not stand beside the names that were asked for."""
    named: list[Any] = ["1.7", (0, 3), "L1N2", "1.7"]
    found = fm.project(tiny, named, k=2)
    rows = found[["layer", "neuron"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(rows) == [(1, 7), (0, 3), (1, 2)]
    one = fm.project(tiny, 0, 3, k=2)
    pd.testing.assert_frame_equal(found[found["layer"] == 0].reset_index(drop=True), one)
    with refuses(InputError, ValueError, "no neuron given"):
        fm.project(tiny, [])


def test_a_wrong_kind_is_named_with_what_is_due(tiny: fm.Model, tiny_store: fm.scanning.Store) -> None:
    with refuses(InputTypeError, TypeError, 'layer must be a whole number or a neuron ("3.17"), not 1.5'):
        tiny_store.values(1.5)  # type: ignore[arg-type]
    with refuses(InputTypeError, TypeError, 'or a neuron ("3.17")', "not None"):
        tiny.neuron(None)  # type: ignore[arg-type]
