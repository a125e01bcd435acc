"""``roles`` end to end: its table, and neurons whose part was written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.neurons.overlap import centred_values, folded_keys
from ffnmem.neurons.role_assignment import (
    APPLIES,
    NONE,
    ROLES,
    clearest,
    count_table,
    known_roles,
    role_counts,
    roles_sheet,
    strongest,
)
from ffnmem.neurons.unembedding import log_unigram, null_space, read_unembedding
from ffnmem.scanning import Store

from ..helpers import allclose, printed, refuses
from ..scanning.corpora import SMALL
from ..scanning.texts import tiny_texts
from .gated import made, scanned


@pytest.fixture(scope="module")
def frame(tiny: fm.Model, tiny_store: Store) -> pd.DataFrame:
    return fm.roles(tiny, tiny_store, n_sequences=None)


def test_one_row_a_neuron(frame: pd.DataFrame, tiny: fm.Model, tiny_store: Store) -> None:
    expected = [(layer, neuron) for layer in range(tiny.n_layers) for neuron in range(tiny.d_mlp)]
    assert list(zip(frame["layer"], frame["neuron"], strict=True)) == expected
    assert frame.columns[:5].tolist() == ["layer", "neuron", "role", "statistic", "value"]
    stats = tiny_store.stats()
    assert allclose(frame["write_norm"], np.hypot(stats["mean"], stats["std"]) * frame["value_norm"])
    silent = frame["write_norm"] <= 0.1 * frame.groupby("layer")["write_norm"].transform("median")
    assert (frame["is_dead"] == (stats["dead"] & silent)).all()
    assert allclose(frame["firing_rate"], tiny_store.stats()["firing_rate"], 1e-12)
    assert allclose(frame["firings"] / tiny_store.n_tokens, frame["firing_rate"], 1e-12)
    known = [role for role in ROLES if role.column in frame]
    assert len(known) == len(ROLES)
    for row in frame.to_dict("records"):
        applying = [role for role in known if row[role.column]]
        assert row["role"] == (applying[0].name if applying else NONE)
        if applying:
            assert row["value"] == row[row["statistic"]]


def test_provenance_and_settings(frame: pd.DataFrame, tiny: fm.Model, tiny_store: Store) -> None:
    """A table without its thresholds cannot be compared with another."""
    about = frame.attrs
    assert about["thresholds"]["kurtosis"] == 10.0
    assert about["thresholds"]["partition"] == 0.005
    assert about["partition_null"] > 1 / tiny.d_model
    assert (frame["is_partition"] == (frame["cosine_variance"] > about["partition_null"])).all()
    assert about["settings"]["tokens_read"] == tiny_store.n_tokens
    assert about["settings"]["basis"] == "folded"
    assert about["null_space"]["dimension"] == 1
    assert 0 < about["frequency_null"] <= 1
    assert about["provenance"]["fingerprint"] == tiny.fingerprint
    assert about["provenance"]["corpus"] == tiny_store.manifest["corpus"]["hash"]


def test_one_layer_is_the_same(frame: pd.DataFrame, tiny: fm.Model, tiny_store: Store) -> None:
    one = fm.roles(tiny, tiny_store, layer=-1, n_sequences=None)
    whole = frame[frame["layer"] == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(one, whole, check_exact=False, rtol=1e-6)


def test_weights_alone(frame: pd.DataFrame, tiny: fm.Model) -> None:
    """Columns of the text are absent, not filled with NaN; the others are the same."""
    told: list[tuple[str, int, int]] = []
    alone = fm.roles(tiny, progress=lambda *now: told.append(now))
    assert not {"is_dead", "is_position", "is_token_frequency", "is_token_detector", "firing_rate"} & set(alone)
    shared = [name for name in alone.columns if name not in ("role", "statistic", "value")]
    pd.testing.assert_frame_equal(alone[shared], frame[shared], check_exact=False, rtol=1e-6)
    assert told[-1] == ("weights", 2 * tiny.d_mlp, 2 * tiny.d_mlp)
    assert "corpus" not in alone.attrs["provenance"]


def test_basis_changes_cosines_only(frame: pd.DataFrame, tiny: fm.Model) -> None:
    raw = fm.roles(tiny, basis="raw")
    assert not np.allclose(raw["cosine_variance"], frame["cosine_variance"], rtol=1e-2)
    assert allclose(raw["null_share"], frame["null_share"])
    assert allclose(raw["value_norm"][:64], tiny.ffn[0].values.norm(dim=1))


# -- planted -----------------------------------------------------------------------------------------------------------


def test_planted_in_the_weights(make_tiny: Callable[..., fm.Model]) -> None:
    """Written along the null space, along one token, against it, along and against the key: each is found."""
    model: Any = make_tiny()
    with torch.no_grad():
        unembedding = read_unembedding(model)
        gain = model.layout.blocks[1].norm.weight.detach()
        values, keys = model.ffn[1].values, model.ffn[1].keys
        values[0] = 9 * null_space(unembedding, 1).basis[:, 0].float()
        folded = keys[1] * gain
        values[1], values[2] = folded, -(keys[2] * gain)
        values[3] = 0
    found = fm.roles(model, kurtosis=1e9, partition=1e9).query("layer == 1").set_index("neuron")
    assert found.loc[0, "role"] == "entropy"
    assert found.loc[0, "null_share"] == pytest.approx(1.0, abs=1e-5)
    assert found.loc[1, "role"] == "strengthening"
    assert found.loc[2, "role"] == "weakening"
    assert found.loc[3, "role"] == NONE
    assert np.isnan(found.loc[3, "cosine_kurtosis"])


def test_planted_in_the_text(make_tiny: Callable[..., fm.Model], tmp_path: Path) -> None:
    """A layer that reads only token and position, with keys for one token, for late positions, and for nothing."""
    model = make_tiny()
    token = model.token_id(" Paris")
    plant(model, token)
    store = fm.scan(model, tiny_texts(), tmp_path / "store", **SMALL)
    # A model 16 wide reaches few of the 303 logits' directions: no value can be near the corpus's log-unigram one.
    thresholds: dict[str, Any] = {"kurtosis": 1e9, "partition": 1e9, "io": 1.0, "frequency": 0.1}
    found = fm.roles(model, store, layer=0, n_sequences=None, **thresholds).set_index("neuron")
    assert found.loc[0, "role"] == "token-detector"
    assert found.loc[0, "triggers"] == [" Paris"]
    assert found.loc[0, "trigger_share"] == 1.0
    assert found.loc[0, "covering_types"] == 1
    assert found.loc[1, "role"] == "position"
    assert found.loc[1, "position_p"] < 1e-12
    assert found.loc[2, "role"] == "dead"
    assert found.loc[2, "value"] == 0.0
    assert found.loc[3, "is_token_frequency"]
    assert abs(found.loc[3, "frequency_cosine"]) == found["frequency_cosine"].abs().max()
    assert not found.loc[[0, 1, 3], "is_dead"].any()
    assert strongest(found.reset_index(), "token-detector", 5)["neuron"].tolist() == [0]


def plant(model: Any, token: int) -> None:
    """Neuron 0 of layer 0 fires at a token, 1 at positions from 10 on, 2 never; 3 writes along word frequency."""
    attention = [p for name, p in model.hf_model.named_parameters() if ".h.0.attn.c_proj." in name]
    assert len(attention) == 2
    block, ffn = model.layout.blocks[0], model.ffn[0]
    with torch.no_grad():
        for parameter in attention:
            parameter.zero_()  # nothing comes from other positions
        position = model.layout.position_embedding.weight
        position.zero_()
        position[:10, 0], position[10:, 0] = -4.0, 4.0
        model.embedding[:, 0] = 0
        block.norm.weight.fill_(1.0)
        block.norm.bias.zero_()
        side = torch.zeros(model.d_model)
        side[0] = 1.0
        ffn.keys[1], ffn.key_bias[1] = side, 0.0
        ffn.keys[2], ffn.key_bias[2] = side, -1000.0
        direction = model.embedding[token].clone()
        everything = torch.nn.functional.layer_norm(
            model.embedding[:, None] + position[None, [5, 15]], (model.d_model,)
        )  # [vocab, 2, d_model]
        scores = everything @ direction
        others = torch.ones(len(scores), dtype=torch.bool)
        others[token] = False
        low, high = float(scores[others].max()), float(scores[token].min())
        assert low < high, "this token cannot be told apart by a hyperplane"
        ffn.keys[0], ffn.key_bias[0] = direction, -(low + high) / 2
        counts = np.zeros(model.d_vocab, np.int64)
        for text in tiny_texts():
            np.add.at(counts, model.tokenizer(text, add_special_tokens=False)["input_ids"], 1)
        tokens = read_unembedding(model).tokens.double()
        target = torch.from_numpy(log_unigram(counts))
        solved = torch.linalg.lstsq(tokens, target[:, None], driver="gelsd").solution[:, 0]
        ffn.values[3] = (solved - solved.mean()).float()  # no token reads (1, …, 1), so it may come out huge


# -- reading the table -------------------------------------------------------------------------------------------------


def test_counts_are_of_all_neurons(frame: pd.DataFrame, tiny: fm.Model) -> None:
    counts = role_counts(frame)
    assert counts.drop(columns="layer").sum(axis=1).tolist() == [tiny.d_mlp] * tiny.n_layers
    flags = role_counts(frame, flags=True)
    assert flags[NONE].tolist() == counts[NONE].tolist()
    for role in ROLES:
        assert flags[role.name].sum() == frame[role.column].sum()
        assert (counts[role.name] <= flags[role.name]).all()


def test_strongest(frame: pd.DataFrame, tiny: fm.Model) -> None:
    part = strongest(frame, "weakening", 3)
    every = frame[frame["is_weakening"]]["io_cosine"].sort_values()
    assert part["io_cosine"].tolist() == every.head(3).tolist()
    with refuses(InputError, ValueError, "'dead'", "store"):
        strongest(fm.roles(tiny), "dead", 3)
    with refuses(InputError, ValueError, "'poet'", "'partition'"):
        strongest(frame, "poet", 3)


def test_a_model_and_a_store_in_each_others_place(tiny: fm.Model, tiny_store: Store) -> None:
    """One line says where each belongs, and whence the one comes that is missing."""
    wrong: Any = tiny_store
    with refuses(InputError, TypeError, "model must be a Model (from fm.load)", "Store("):
        fm.roles(wrong)
    wrong = tiny
    with refuses(InputError, TypeError, "store must be a Store (from fm.scan or fm.open_store)", "not Model("):
        fm.polysemanticity(wrong)


def test_refusals(tiny: fm.Model, atlas: fm.Model, tiny_store: Store) -> None:
    with refuses(InputError, ValueError, atlas.fingerprint, tiny.fingerprint):
        fm.roles(atlas, tiny_store)
    with refuses(OutOfRangeError, IndexError, "layer 2", "0 to 1"):
        fm.roles(tiny, layer=2)
    with refuses(InputError, ValueError, "coverage", "2"):
        fm.roles(tiny, coverage=2.0)
    with refuses(InputError, ValueError, "basis", "'flat'"):
        fm.roles(tiny, basis="flat")


def test_sheet(tiny: fm.Model) -> None:
    """Counts of another layer, a role without neurons as a row, another role's statistic, tokens of another neuron."""
    frame = fm.roles(tiny)
    listed = clearest(frame, top=2)
    promoted = {(row.layer, row.neuron): [f" {row.layer}.{row.neuron}"] for row in listed.itertuples()}
    counts, neurons, origin = roles_sheet(frame, listed, promoted).blocks
    known = role_counts(frame, flags=True)
    for name, *numbers in counts.rows:
        assert numbers == [*(count or None for count in known[name].tolist()), known[name].sum()]
    absent = [role.name for role in known_roles(frame) if not known[role.name].any()]
    assert counts.caption == (f"none: {', '.join(absent)}" if absent else "")
    assert len(neurons.rows) == len(listed)
    statistics = {role.name: role.statistic for role in ROLES}
    for line, row in zip(neurons.rows, listed.to_dict("records"), strict=True):
        at = (row["layer"], row["neuron"])
        assert line[1:4] == (at, statistics[row["listed"]].replace("_", " "), f"{row[statistics[row['listed']]]:.4g}")
        assert line[4].pieces[0][0].text == promoted[at][0]
    assert origin.fields["basis"] == "folded"
    none = roles_sheet(frame, listed.iloc[:0], {}).blocks[1]
    assert none.caption == "no neuron has any of these roles"


def test_many_layers_stand_below_each_other(tiny: fm.Model) -> None:
    """A wide table would not fit a terminal: the roles and their sums stand in each part, no layer is left out."""
    frame = fm.roles(tiny)
    many = pd.concat([frame.assign(layer=layer) for layer in range(30)], ignore_index=True)
    lines = printed(count_table(many), 80)
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if line.startswith("role")]
    assert [head[-1] for head in heads] == ["all"] * len(heads)
    assert [int(name) for head in heads for name in head[1:-1]] == list(range(30))
    assert " ".join(lines).count(APPLIES) == 1


# -- gated models ------------------------------------------------------------------------------------------------------

LOOSE: dict[str, Any] = {"kurtosis": 2.5, "io": 0.3, "position": 0.01, "types": 20, "coverage": 0.5, "min_count": 3}


def test_gated_models(gated: fm.Model, gated_store: Store) -> None:
    """Columns of the gate, firing by the gate as the store counts it, and no direction taken out of d_model."""
    found = fm.roles(gated, gated_store, n_sequences=None)
    assert allclose(
        found["gate_io_cosine"][:64],
        torch.cosine_similarity(folded_keys(gated, 0, "gate"), centred_values(gated, 0)),
        1e-5,
    )
    assert allclose(
        found["gate_key_cosine"][64:],
        torch.cosine_similarity(folded_keys(gated, 1, "gate"), folded_keys(gated, 1)),
        1e-5,
    )
    assert allclose(found["firings"] / gated_store.n_tokens, found["firing_rate"], 1e-12)
    assert (found["is_dead"] == gated_store.stats()["dead"]).all()
    assert allclose(found["value_norm"][:64], centred_values(gated, 0).norm(dim=1))
    assert found.attrs["null_space"]["dimension"] == 1


def test_no_role_depends_on_how_a_gated_neuron_is_written(
    gated: fm.Model, gated_store: Store, turned: fm.Model, turned_store: Store
) -> None:
    """Key and value turned round together are the same neuron; the signs that change are the stored ones."""
    one = fm.roles(gated, gated_store, n_sequences=None, **LOOSE)
    other = fm.roles(turned, turned_store, n_sequences=None, **LOOSE)
    assert one[[role.column for role in ROLES]].equals(other[[role.column for role in ROLES]])
    assert one["role"].tolist() == other["role"].tolist()
    assert one["is_prediction"].any()
    assert one["is_suppression"].any()
    assert one["triggers"].tolist() == other["triggers"].tolist()
    flips = np.where(np.arange(128) % 2 == 0, -1.0, 1.0)
    for name in ("cosine_skew", "gate_io_cosine", "gate_key_cosine", "frequency_cosine"):
        assert allclose(other[name], one[name] * flips, 1e-4)
    assert allclose(other["io_cosine"], one["io_cosine"])


def test_no_role_depends_on_how_long_a_gated_neurons_value_is(
    gated: fm.Model, gated_store: Store, gated_kind: str, tokenizer: Any, tmp_path: Path
) -> None:
    """Keys made longer as their values become shorter are the same neurons."""
    stretched, by = made(gated_kind, tokenizer), torch.tensor([4.0, 1.0, 0.25, 1.0]).repeat(16).unsqueeze(1)
    with torch.no_grad():
        for ffn in stretched.ffn:
            ffn.keys.mul_(by)
            ffn.values.div_(by)
    loose: dict[str, Any] = {**LOOSE, "late": 2, "null_share": 0.2, "norm": 1.0, "variance": 1.0}
    store = scanned(stretched, tmp_path / "store")
    for one, other in (
        (fm.roles(gated, **loose), fm.roles(stretched, **loose)),
        (
            fm.roles(gated, gated_store, n_sequences=None, **loose),
            fm.roles(stretched, store, n_sequences=None, **loose),
        ),
    ):
        assert one["is_entropy"].any()
        assert one["role"].tolist() == other["role"].tolist()
        assert (one["value_norm"] / other["value_norm"]).max() > 3.9
        for name in {"write_norm", "coefficient_sign"} & set(one):
            assert allclose(one[name], other[name], 1e-4)


def test_planted_in_a_gated_models_weights(gated_kind: str, tokenizer: Any) -> None:
    """Along the null space and long, along and against the key as the gain of both norms has it, and written in (1, …,
    1), which an RMSNorm lets through."""
    model = made(gated_kind, tokenizer)
    with torch.no_grad():
        values, norm = model.ffn[1].values, model.norm_after(1)
        post = torch.ones(16) if norm is None else norm.gain
        values[0] = 9 * null_space(read_unembedding(model), 1).basis[:, 0].float() / post
        folded = folded_keys(model, 1)
        values[1], values[2] = folded[1] / post, -folded[2] / post
        values[3] = 1 / post
    found = fm.roles(model, kurtosis=1e9, partition=1e9).query("layer == 1").set_index("neuron")
    assert found.loc[[0, 1, 2], "role"].tolist() == ["entropy", "strengthening", "weakening"]
    assert found.loc[0, "null_share"] == pytest.approx(1.0, abs=1e-4)
    assert found.loc[3, "cosine_variance"] > 0
