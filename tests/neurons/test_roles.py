"""``roles``: its rules against a plain double, its table, neurons made by hand; what values do to the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import TEXT_ROLES, RoleName
from ffnmem.models.residual import FinalNorm
from ffnmem.neurons import role_assignment, unembedding
from ffnmem.neurons.counting import count_firings, position_information, token_detection
from ffnmem.neurons.overlap import centred_values, folded_keys
from ffnmem.scanning import Store

from ..helpers import allclose, refuses
from ..planted_models import plant_roles
from .gated import made, scanned

# -- the rules ---------------------------------------------------------------------------------------------------------

STATISTICS: dict[str, Any] = {
    "firing_rate": (0, 1),
    "position_information": (0, 0.08),
    "null_share": (0, 1),
    "cosine_kurtosis": (2, 13),
    "cosine_skew": (-1, 1),
    "cosine_variance": (0, 0.007),
    "trigger_share": (0, 1),
    "value_norm": (0, 3),
    "key_norm": (0, 3),
    "gate_key_cosine": (-1, 1),
    "write_norm": (0, 3),
}
TEXT = ("firing_rate", "position_information", "trigger_share", "write_norm")


def drawn(gated: bool, text: bool) -> pd.DataFrame:
    """Statistics of neurons of three layers, anywhere around the thresholds, and a few at them or without a value."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({name: random.uniform(*ends, 300) for name, ends in STATISTICS.items()})
    frame.insert(0, "layer", np.repeat([0, 1, 2], 100))
    frame.insert(1, "neuron", np.tile(np.arange(100), 3))
    frame.loc[::30, ["position_information", "cosine_kurtosis", "cosine_variance"]] = 0.05, 10.0, 0.005
    frame.loc[::41, ["value_norm", "cosine_kurtosis", "cosine_skew", "gate_key_cosine"]] = np.nan
    if text:
        frame = frame.assign(dead=random.random(300) < 0.3, detects=random.random(300) < 0.3)
        frame["coefficient_sign"] = random.choice([-1.0, 0.0, 1.0], 300)
    else:
        frame = frame.drop(columns=[*TEXT])
    return frame if gated else frame.drop(columns=["key_norm", "gate_key_cosine"])


def plain(frame: pd.DataFrame, at: role_assignment.Thresholds, n_layers: int) -> list[dict[str, bool]]:
    """The rules, neuron by neuron: of a gated one length and sign are those of what it writes, from text, or where
    there is none from its key. What random directions have is no role."""
    gated, text, attrs = "gate_key_cosine" in frame, "dead" in frame, frame.attrs
    frame = frame.assign(length=frame["value_norm"])
    if gated:
        frame["length"] = frame["write_norm"] if text else frame["value_norm"] * frame["key_norm"]
        frame["cosine_skew"] *= frame["coefficient_sign"] if text else np.sign(frame["gate_key_cosine"])
    of_layer = frame.groupby("layer")
    long, flat = of_layer["length"].quantile(0.9), of_layer["cosine_variance"].quantile(0.1)
    partition = max(at.partition, attrs.get("partition_null", 0))
    found = []
    for n in frame.itertuples():
        peaked = n.cosine_kurtosis > at.kurtosis
        of_text = {
            "dead": n.dead,
            "position": n.position_information > at.position,
            "token-detector": n.detects,
        } if text else {}  # fmt: skip
        of_weights = {
            "entropy": n.layer >= n_layers - 2 and n.length > long[n.layer] and n.cosine_variance < flat[n.layer],
            "prediction": peaked and n.cosine_skew > 0,
            "suppression": peaked and n.cosine_skew < 0,
            "partition": n.cosine_variance > partition,
        }
        found.append({name: bool(applies) for name, applies in {**of_text, **of_weights}.items()})
    return found


MOVED = {"kurtosis": 12.0, "partition": 0.006, "position": 0.06}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    ("changes", "attrs"),
    [
        ({}, {}),
        (MOVED, {}),
        ({}, {"partition_null": 0.0061}),
        ({}, {"partition_null": 0.001}),
    ],
)
def test_rules_are_the_papers(gated: bool, text: bool, changes: dict[str, Any], attrs: dict[str, float]) -> None:
    """Every role that applies is a flag, the first is the neuron's; roles of text are absent without it, not false."""
    frame, at = drawn(gated, text), role_assignment.Thresholds(**changes).resolved(1024)
    frame.attrs = attrs
    rows = role_assignment.assign(frame, at, 3).to_dict("records")
    reached = set()
    for row, expected, own in zip(rows, plain(frame, at, 3), frame.to_dict("records"), strict=True):
        assert {role.name: row[role.column] for role in role_assignment.ROLES if role.column in row} == expected
        first = next((role for role in role_assignment.ROLES if expected.get(role.name)), None)
        told = (row["role"], row["statistic"], row["value"])
        reached |= {row["role"], *(name for name, applies in expected.items() if applies)}
        np.testing.assert_equal(
            told,
            (role_assignment.NONE, "", np.nan)
            if first is None
            else (first.name, first.statistic, own[first.statistic]),
        )
    assert reached >= {
        role_assignment.NONE,
        "entropy",
        "prediction",
        "suppression",
        "partition",
    }
    assert tuple(role.name for role in role_assignment.ROLES) == get_args(RoleName)
    assert {role.name for role in role_assignment.ROLES if role.needs_store} == set(TEXT_ROLES)


def test_thresholds() -> None:
    """The published number at the published width; what was given stays."""
    assert role_assignment.Thresholds().resolved(768).null_dimension == 12
    assert role_assignment.Thresholds(partition=0.004, null_dimension=7).resolved(768) == role_assignment.Thresholds(
        partition=0.004, null_dimension=7
    )


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tiny: fm.Model, tiny_store: Store) -> role_assignment.Roles:
    return fm.roles(tiny, tiny_store, n_sequences=None)


@pytest.fixture(scope="module")
def frame(found: role_assignment.Roles) -> pd.DataFrame:
    return found.to_frame()


def test_one_row_a_neuron(frame: pd.DataFrame, tiny: fm.Model, tiny_store: Store) -> None:
    expected = [(layer, neuron) for layer in range(tiny.n_layers) for neuron in range(tiny.d_mlp)]
    assert list(zip(frame["layer"], frame["neuron"], strict=True)) == expected
    assert frame.columns[:5].tolist() == ["layer", "neuron", "role", "statistic", "value"]
    stats = tiny_store.stats()
    assert allclose(frame["write_norm"], np.hypot(stats["mean"], stats["std"]) * frame["value_norm"])
    assert (frame["is_dead"] == stats["dead"]).all()
    assert allclose(frame["firing_rate"], tiny_store.stats()["firing_rate"], 1e-12)
    assert {role.column for role in role_assignment.ROLES} <= set(frame)
    counts = count_firings(tiny, tiny_store, n_sequences=None)
    for layer, part in frame.groupby("layer"):
        information = position_information(counts.at_position[layer], counts.positions)
        detection = token_detection(counts, layer)
        assert part["firings"].tolist() == counts.fired(layer).tolist()
        assert part["position_information"].tolist() == information.information.tolist()
        assert part["position_p"].tolist() == information.p.tolist()
        np.testing.assert_array_equal(part["covering_types"], detection.covering)
        np.testing.assert_array_equal(part["trigger_share"], detection.share)
        assert part["is_token_detector"].tolist() == detection.detects.tolist()
        triggers = [tiny.token_strings(detection.triggers.get(n, [])) for n in part["neuron"]]
        assert part["triggers"].tolist() == triggers


def test_provenance_and_settings(frame: pd.DataFrame, tiny: fm.Model, tiny_store: Store) -> None:
    """A table without its thresholds cannot be compared with another."""
    about = frame.attrs
    assert (about["thresholds"]["kurtosis"], about["thresholds"]["partition"]) == (10.0, 0.005)
    assert (frame["is_partition"] == (frame["cosine_variance"] > about["partition_null"])).all()
    assert (about["settings"]["tokens_read"], about["settings"]["basis"]) == (tiny_store.n_tokens, "folded")
    assert about["provenance"]["fingerprint"] == tiny.fingerprint
    assert about["provenance"]["corpus"] == tiny_store.manifest["corpus"]["hash"]


def test_parts_are_as_the_whole(frame: pd.DataFrame, tiny: fm.Model, tiny_store: Store) -> None:
    """One layer; weights alone, without columns of the text; and raw weights, with other cosines and lengths."""
    one = fm.roles(tiny, tiny_store, layer=-1, n_sequences=None).neurons
    whole = frame[frame["layer"] == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(one, whole, check_exact=False, rtol=1e-6)
    told: list[tuple[str, int, int]] = []
    alone = fm.roles(tiny, progress=lambda *now: told.append(now)).neurons
    shared = alone.columns.drop(["role", "statistic", "value"])
    assert not {"is_dead", "firing_rate", "corpus"} & {*shared, *alone.attrs["provenance"]}
    pd.testing.assert_frame_equal(alone[shared], frame[shared], check_exact=False, rtol=1e-6)
    assert told[-1] == ("weights", 2 * tiny.d_mlp, 2 * tiny.d_mlp)
    raw = fm.roles(tiny, basis="raw").neurons
    exact = cosines(tiny.ffn[0].values, tiny.unembedding)
    assert allclose(raw["cosine_variance"][:64], exact.var(axis=1), 1e-6)
    assert allclose(raw["null_share"], frame["null_share"])
    assert allclose(raw["value_norm"][:64], tiny.ffn[0].values.norm(dim=1))


# -- planted -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_planted_in_the_weights(kind: str, tokenizer: Any) -> None:
    """Along the null space, and along (1, …, 1), which an RMSNorm alone lets through."""
    model = made(kind, tokenizer)
    with torch.no_grad():
        values, norm = model.ffn[1].values, model.norm_after(1)
        post = torch.ones(16) if norm is None else norm.gain
        values[0] = 9 * unembedding.null_space(unembedding.read_unembedding(model), 1).basis[:, 0].float() / post
        values[3] = 1 / post
    found = fm.roles(model, kurtosis=1e9, partition=1e9).neurons.query("layer == 1").set_index("neuron")
    assert found.loc[0, "role"] == "entropy"
    assert found.loc[0, "null_share"] == pytest.approx(1.0, abs=1e-4)
    assert (found.loc[3, "cosine_variance"] > 0) == model.gated
    assert model.gated or found.loc[3, "role"] == role_assignment.NONE


def test_planted_roles_are_recovered(tmp_path: Path) -> None:
    """Each role, by the default thresholds, of neurons that were made for it on a text of their own."""
    planted = plant_roles(100)
    store = fm.scan(planted.model, planted.texts, tmp_path / "store")
    found, truth = fm.roles(planted.model, store).neurons, planted.truth
    named = {"detector": "token-detector"}
    for role in role_assignment.ROLES:
        true = truth["role"].replace(named) == role.name
        got = found[role.column].astype(bool)
        assert true.sum() == 7
        assert (true & got).sum() >= 0.85 * max(true.sum(), got.sum()), role.name


# -- reading the table -------------------------------------------------------------------------------------------------


def test_counts_are_of_all_neurons(found: role_assignment.Roles, frame: pd.DataFrame, tiny: fm.Model) -> None:
    firsts, flags = (one.set_index("role") for one in (found.first_roles, found.counts))
    assert firsts.sum().tolist() == [tiny.d_mlp] * tiny.n_layers + [len(frame)]
    assert flags.loc[role_assignment.NONE].tolist() == firsts.loc[role_assignment.NONE].tolist()
    for role in role_assignment.ROLES:
        by_layer = frame.groupby("layer")[role.column].sum().tolist()
        assert flags.loc[role.name].tolist() == [*by_layer, sum(by_layer)]
        assert firsts.loc[role.name, "all"] == (frame["role"] == role.name).sum()
        assert f"{sum(by_layer)} {role.name}" in found.verdict or not any(by_layer)


def test_the_clearest(found: role_assignment.Roles, frame: pd.DataFrame, tiny: fm.Model, tiny_store: Store) -> None:
    """By the role's own statistic, as many of each role as there is room for, or of one alone."""
    every = frame[frame["is_position"]]["position_information"].sort_values(ascending=False)
    asked = fm.roles(tiny, tiny_store, n_sequences=None, role="position")
    assert asked.to_frame(3)["value"].tolist() == every.head(3).tolist() != []
    assert len(asked.to_frame()) == len(every)
    assert asked.counts.equals(found.counts)
    listed = found.clearest(20)
    having = [role for role in role_assignment.ROLES if frame[role.column].any()]
    assert list(dict.fromkeys(listed["listed"])) == [role.name for role in having]
    assert listed["listed"].value_counts().max() == 20 // len(having)
    for row in listed.to_dict("records"):
        assert row[f"is_{row['listed'].replace('-', '_')}"]
        assert row["value"] == row[row["statistic"]]
    with refuses(InputError, ValueError, "'dead'", "store"):
        fm.roles(tiny, role="dead")
    with refuses(InputError, ValueError, "'poet'", "'partition'"):
        fm.roles(tiny, role="poet")


# -- gated models ------------------------------------------------------------------------------------------------------


def test_gated_models(gated: fm.Model, gated_store: Store) -> None:
    """Columns of the gate, firing by the gate, the sign of the coefficient's cube, no direction taken out."""
    found = fm.roles(gated, gated_store, n_sequences=None).neurons
    cubes = np.zeros((2, 64))
    for number in range(gated_store.sequences.n_sequences):
        captured = fm.capture(gated, gated_store.sequences.sequence_tokens(number).tolist())
        cubes += [m[captured.content].pow(3).sum(0).numpy() for m in captured.coefficients.values()]
    assert found["coefficient_sign"].tolist() == np.sign(cubes).ravel().tolist()
    sides = {"gate": folded_keys(gated, 0, "gate"), "key": folded_keys(gated, 0), "value": centred_values(gated, 0)}
    assert allclose(found["gate_io_cosine"][:64], torch.cosine_similarity(sides["gate"], sides["value"]), 1e-5)
    assert allclose(found["gate_key_cosine"][:64], torch.cosine_similarity(sides["gate"], sides["key"]), 1e-5)
    assert allclose(found["firings"] / gated_store.n_tokens, found["firing_rate"], 1e-12)
    assert allclose(found["value_norm"][:64], sides["value"].norm(dim=1))
    assert allclose(found["key_norm"][:64], sides["key"].norm(dim=1))
    assert found.attrs["null_space"]["dimension"] == 1
    m = np.random.default_rng(0).gamma(0.5, size=(1, 1000)) - 2  # its mean has another sign than its skewness
    assert allclose(
        role_assignment.third_moment(m.mean(1), m.std(1), pd.Series(stats.skew(m, axis=1))), (m**3).mean(1), 1e-9
    )


def test_no_role_depends_on_how_a_gated_neuron_is_written(
    gated: fm.Model,
    gated_store: Store,
    gated_kind: str,
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Key and value turned round together, or one longer as the other is shorter, are the same neuron."""
    stretched, by = made(gated_kind, tokenizer), torch.tensor([-4.0, 1.0, 0.25, -1.0]).repeat(16).unsqueeze(1)
    with torch.no_grad():
        for ffn in stretched.ffn:
            ffn.keys.mul_(by)
            ffn.values.div_(by)
    monkeypatch.setattr(role_assignment, "LONG", 0.5)
    monkeypatch.setattr(role_assignment, "FLAT", 0.5)
    loose: dict[str, Any] = {"kurtosis": 2.5, "position": 0.01, "types": 20, "coverage": 0.5, "n_sequences": None}
    signs = np.tile(np.sign(by.numpy()[:, 0]), 2)
    for ours, theirs in ((None, None), (gated_store, scanned(stretched, tmp_path / "store"))):
        one, other = fm.roles(gated, ours, **loose).neurons, fm.roles(stretched, theirs, **loose).neurons
        flags = [name for name in one if name.startswith("is_")]
        assert one[[*flags, "role"]].equals(other[[*flags, "role"]])
        assert one[["is_entropy", "is_prediction", "is_suppression"]].any().all()
        assert (one["value_norm"] / other["value_norm"]).max() > 3.9
        for name in ("cosine_skew", "gate_io_cosine", "gate_key_cosine", "coefficient_sign"):
            assert name not in one or allclose(other[name], one[name] * signs, 1e-4)
        for name in ("io_cosine", "write_norm"):
            assert name not in one or allclose(other[name], one[name], 1e-4)


# -- moments of cosines and the near-null space, against plain computations ----------------------------


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosines(vectors: torch.Tensor, tokens: torch.Tensor) -> np.ndarray:
    v, u = vectors.double(), tokens.double()
    return ((v / v.norm(dim=1, keepdim=True)) @ (u / u.norm(dim=1, keepdim=True)).T).detach().numpy()


def test_the_unembedding_is_folded_as_in_the_papers(architecture: fm.Model) -> None:
    """Folding and centring change nothing that softmax sees; under RMSNorm a token's own mean stays."""
    before, centred = architecture.unembedding.detach().clone(), architecture.centred
    folded = unembedding.read_unembedding(architecture)
    found = folded.tokens
    assert folded.centred == centred
    assert allclose(found.mean(dim=0), torch.zeros(architecture.d_model))
    assert (float(found.mean(dim=1).abs().max()) < 1e-5) == centred
    x = gaussian(3, architecture.d_model)
    seen = x - x.mean(dim=1, keepdim=True) if centred else x
    logits = (seen * FinalNorm(architecture).gain) @ before.T
    mine = x @ found.T
    assert allclose(mine - mine[:, :1], logits - logits[:, :1], 1e-5)
    assert torch.equal(unembedding.read_unembedding(architecture, "raw").tokens, before)
    assert torch.equal(unembedding.read_values(architecture, 1, "raw"), architecture.ffn[1].values)


@pytest.mark.parametrize("blocks", [(2048, 4096), (3, 7)])
def test_moments_are_scipys(monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int]) -> None:
    """Whatever the blocks; a zero value has no direction, and a padded token does not count."""
    monkeypatch.setattr(unembedding, "ROWS", blocks[0])
    monkeypatch.setattr(unembedding, "TOKENS", blocks[1])
    vectors, tokens = gaussian(8, 12), gaussian(50, 12, seed=1).abs() + 0.5
    exact = cosines(vectors, tokens)
    padded = unembedding.Unembedding(torch.cat([tokens, torch.zeros(5, 12)]), "raw").units
    found = unembedding.cosine_moments(torch.cat([vectors, torch.zeros(1, 12)]), padded)
    assert allclose(found["mean"][:8], exact.mean(axis=1), 1e-6)
    assert allclose(found["variance"][:8], exact.var(axis=1), 1e-6)
    assert allclose(found["skew"][:8], stats.skew(exact, axis=1), 1e-5)
    assert allclose(found["kurtosis"][:8], stats.kurtosis(exact, axis=1, fisher=False), 1e-5)
    assert all(np.isnan(part[8]) for part in found.values())
    with refuses(InputError, ValueError, "zero"):
        _ = unembedding.Unembedding(torch.zeros(3, 6), "raw").units


def test_accelerators_sum_the_same_powers() -> None:
    """What only a GPU runs would be tried by nobody: here it runs on the processor."""
    scores, shifts = gaussian(7, 50), np.linspace(-1, 1, 7)
    expected = np.zeros((7, 4))
    unembedding.power_sums(scores.numpy(), shifts, 0, 7, expected)
    assert allclose(unembedding.device_power_sums(scores, torch.from_numpy(shifts)), expected, 1e-12)


def test_null_space_is_of_the_svd(architecture: fm.Model) -> None:
    """The last singular vectors, under LayerNorm after (1, …, 1) is left out, which would be the very last."""
    folded, kept = unembedding.read_unembedding(architecture), 16 - architecture.centred
    found = unembedding.null_space(folded, 3)
    _, singular, vt = np.linalg.svd(folded.tokens.double().numpy(), full_matrices=False)
    assert (singular[-1] < 1e-5) == architecture.centred
    last = vt[kept - 3 : kept]
    assert allclose(found.basis @ found.basis.T, last.T @ last, 1e-5)
    assert found.largest == pytest.approx(singular[kept - 3], rel=1e-4)
    assert found.median == pytest.approx(np.sort(singular[:kept])[(kept - 1) // 2], rel=1e-4)
    some = torch.from_numpy(np.stack([last[1], vt[0], np.zeros(16)])).float()
    assert np.allclose(found.share(some), [1.0, 0.0, np.nan], atol=1e-5, equal_nan=True)
    assert [unembedding.null_dimension(width) for width in (768, 16)] == [12, 1]
    with refuses(InputError, ValueError, "null_dimension", str(kept), str(kept + 1)):
        unembedding.null_space(folded, kept + 1)


@pytest.mark.parametrize(("basis", "centred"), [("raw", True), ("folded", True), ("folded", False)])
def test_null_of_variances(basis: str, centred: bool) -> None:
    """That of random directions, centred as values are: about 1/d, much more where tokens share a direction."""
    tokens = gaussian(2000, 64) + 8 * torch.nn.functional.one_hot(torch.arange(2000) % 2, 64)
    drawn = torch.from_numpy(np.random.default_rng([5, 1]).standard_normal((1000, 64)))
    if basis == "folded" and centred:
        drawn -= drawn.mean(dim=1, keepdim=True)
    expected = np.quantile(cosines(drawn, tokens).var(axis=1), 0.999)
    assert unembedding.variance_null(unembedding.Unembedding(tokens, basis, centred), 5) == pytest.approx(
        expected, rel=1e-4
    )
    assert (
        1 / 64
        < unembedding.variance_null(unembedding.Unembedding(gaussian(2000, 64), basis, centred))
        < 1.5 / 64
        < expected / 2
    )
