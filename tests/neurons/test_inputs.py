"""What FFNs read, read again: as a capture of the whole text has it, at the places asked for and no others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.models.layer_pass import LayerPass
from ffnmem.neurons.inputs import Inputs
from ffnmem.scanning import Store, scan
from ffnmem.scanning.state import place_of, position_of, sequence_of

from ..helpers import allclose, refuses
from ..scanning.texts import tiny_texts


def everywhere(store: Store, sequences: list[int]) -> np.ndarray:
    """All places of some sequences."""
    lengths = [len(store.sequences.sequence_tokens(s)) for s in sequences]
    return np.concatenate([place_of(np.full(n, s), np.arange(n)) for s, n in zip(sequences, lengths, strict=True)])


def captured(model: fm.Model, store: Store, layer: int, places: np.ndarray) -> np.ndarray:
    """The naive way: every whole sequence by itself."""
    whole = {
        s: fm.capture(model, store.sequences.sequence_tokens(s).tolist()).ffn_in[layer][0]
        for s in set(sequence_of(places).tolist())
    }
    rows = [whole[s][p] for s, p in zip(sequence_of(places).tolist(), position_of(places).tolist(), strict=True)]
    return torch.stack(rows).detach().float().numpy()


def test_any_order_is_as_captured(tiny: fm.Model, tiny_store: Store) -> None:
    """Places shuffled, repeated, of both layers."""
    random = np.random.default_rng(0)
    every = everywhere(tiny_store, list(range(0, tiny_store.sequences.n_sequences, 3)))
    places = {layer: random.choice(every, 150) for layer in (0, 1)}
    with Inputs(tiny_store, tiny, places) as inputs:
        for layer, some in places.items():
            assert inputs.at(layer, some).dtype == np.float32
            assert allclose(inputs.at(layer, some), captured(tiny, tiny_store, layer, some), 1e-5)
            again = random.permutation(some)[:9]
            assert allclose(inputs.at(layer, again), captured(tiny, tiny_store, layer, again), 1e-5)


def test_every_architecture(architecture: fm.Model, tmp_path: Path) -> None:
    """OPT flattens batch and position, NeoX norms in parallel: each is read where its FFN reads."""
    store = scan(architecture, tiny_texts()[:6], tmp_path / "s", k=2, sample=4, draws=2, frequent=2)
    places = everywhere(store, [0, 3, 5])[::2]
    with Inputs(store, architecture, {1: places}) as inputs:
        assert allclose(inputs.at(1, places), captured(architecture, store, 1, places), 1e-5)


def test_nothing_behind_the_last_place_is_run(tiny: fm.Model, tiny_store: Store) -> None:
    """Sequences are cut there: the cost is what the budget counts."""
    places = {0: place_of(np.array([4, 1, 1]), np.array([2, 0, 3])), 1: place_of(np.array([4]), np.array([0]))}
    told: list[tuple[str, int, int]] = []
    with Inputs(tiny_store, tiny, places, lambda *report: told.append(report)) as inputs:
        assert inputs.tokens_read == 3 + 4
        assert allclose(inputs.at(0, places[0]), captured(tiny, tiny_store, 0, places[0]), 1e-5)
    assert {report[0] for report in told} == {"read"}
    assert told[-1] == ("read", 5, 5)  # BOS left out
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_no_deeper_than_asked(tiny: fm.Model, tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    until: list[int | None] = []
    run = LayerPass.run

    def watched(self: LayerPass, *args: Any, **options: Any) -> None:
        until.append(options["until"])
        run(self, *args, **options)

    monkeypatch.setattr(LayerPass, "run", watched)
    with Inputs(tiny_store, tiny, {0: everywhere(tiny_store, [2]), 1: np.empty(0, np.int64)}):
        pass
    assert set(until) == {0}


def test_what_was_not_asked_for_is_refused(tiny: fm.Model, atlas: fm.Model, tiny_store: Store) -> None:
    """Its neighbour's row would be taken for it; and another model's rows for the store's."""
    places, nowhere = place_of(np.array([1, 1]), np.array([2, 5])), np.empty(0, np.int64)
    with Inputs(tiny_store, tiny, {0: places, 1: nowhere}) as inputs:
        assert inputs.at(1, nowhere).shape == (0, tiny.d_model)
        for other in ((1, 3), (7, 0), (0, 0)):
            with refuses(InputError, ValueError, "layer 0", f"sequence {other[0]}", f"position {other[1]}"):
                inputs.at(0, np.array([place_of(*other), places[0]]))
        with refuses(InputError, ValueError, "layer 1"):
            inputs.at(1, places)
    with refuses(InputError, ValueError, tiny_store.fingerprint, atlas.fingerprint):
        Inputs(tiny_store, atlas, {0: np.array([0])})


def test_leaves_no_files(tiny: fm.Model, tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while it is open, not after a failure; and it works where the store cannot be written to."""
    before, places = sorted(tiny_store.folder.iterdir()), {1: everywhere(tiny_store, [1])}
    with Inputs(tiny_store, tiny, places):
        assert sorted(tiny_store.folder.iterdir()) == before

    def fail(*_: object) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        Inputs(tiny_store, tiny, places, fail)
    assert sorted(tiny_store.folder.iterdir()) == before
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Inputs(tiny_store, tiny, places) as elsewhere:
        assert allclose(elsewhere.at(1, places[1]), captured(tiny, tiny_store, 1, places[1]), 1e-5)
