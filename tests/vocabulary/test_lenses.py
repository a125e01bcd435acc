"""The Jacobian lens: its matrices, how they are made, kept and found, and what is read through them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import FfnmemError, FileError, InputError, ModelError
from ffnmem.corpus.passes import STATE
from ffnmem.models.hooks import first_tensor
from ffnmem.models.replaying import PlainLayers
from ffnmem.vocabulary.lenses import JacobianLens, jacobian_row, lens_file, load_lens, streams
from ffnmem.vocabulary.projections import read_projection
from ffnmem.vocabulary.vectors import side_tokens, side_vectors

from ..editing.edits import made as random_edit
from ..helpers import PROMPT, Pair, allclose, refuses

TEXTS = [PROMPT, "The city of Paris", " is in the Tower of London is", "The Colosseum is in Rome"]
SMALL: dict[str, Any] = {"context": 12, "batch_tokens": 24, "pages": 3}


def jacobian_lens(model: fm.Model, out: Path, **more: Any) -> JacobianLens:
    return fm.vocabulary.jacobian_lens(model, TEXTS, out, **{**SMALL, **more})


@pytest.fixture(scope="module")
def lens(tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> JacobianLens:
    return jacobian_lens(tiny, tmp_path_factory.mktemp("lens") / "lens.safetensors")


def brute(blocks: Any, run: Callable[[], object], layer: int, length: int, width: int) -> Tensor:
    """∂h_final,t′/∂h_l,t, ``[t′, i, t, j]``: of what the last block writes by what is added behind a block."""

    def final(delta: Tensor) -> Tensor:
        found: list[Tensor] = []

        def add(_module: Any, _args: Any, output: Any) -> Any:
            changed = first_tensor(output) + delta
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        handles = [
            blocks[layer].register_forward_hook(add),
            blocks[-1].register_forward_hook(lambda _m, _a, out: found.append(first_tensor(out))),
        ]
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()
        return found[0][0]

    nothing = torch.zeros(1, length, width, dtype=torch.float64)
    whole = torch.autograd.functional.jacobian(final, nothing)
    assert isinstance(whole, Tensor)
    return whole[:, :, 0]


# -- the matrices ----------------------------------------------------------------------------------------------------


def test_rows_are_the_jacobian_s_on_every_architecture(pair64: Pair) -> None:
    """A block that adds in place, writes beside its attention or norms what it writes would have another derivative."""
    model, tokens = pair64.model, torch.tensor([[3, 1, 4, 1, 5]])
    counted = torch.tensor([[False, True, True, True, False]])
    stream = streams(PlainLayers(model), tokens)
    found = torch.stack([jacobian_row(stream, counted, i)[:, 0] for i in range(model.d_model)], dim=1)
    run = lambda: pair64.hf.base_model(input_ids=tokens, use_cache=False)  # noqa: E731
    for layer in range(model.n_layers - 1):
        whole = brute(pair64.blocks(), run, layer, 5, model.d_model)
        expected = whole[counted[0]][:, :, counted[0]].sum((0, 2))  # t′ before t has no gradient
        scale = max(1.0, float(expected.abs().max()))
        assert allclose(found[layer] / scale, expected / scale, pair64.exact(1e-10))


def test_a_lens_is_their_mean_over_the_positions_of_a_text(tiny_hf: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Pads, BOS, or a mean over texts of unlike length in place of positions, would be another lens."""
    model = fm.load(tiny_hf, tokenizer=tokenizer, dtype="float64")
    lens = jacobian_lens(model, tmp_path / "lens", pages=1, batch_tokens=1000)
    hf = model.hf_model
    expected, count = torch.zeros(16, 16, dtype=torch.float64), 0
    for text in TEXTS:
        ids = torch.tensor(model.tokenize(text))
        for first in range(1, len(ids), 11):
            tokens = torch.cat([ids[:1], ids[first : first + 11]])[None]
            run = lambda given=tokens: hf.base_model(input_ids=given, use_cache=False)  # noqa: E731
            whole = brute(hf.transformer.h, run, 0, tokens.shape[1], 16)
            expected += whole[1:, :, 1:].sum((0, 2))
            count += tokens.shape[1] - 1
    assert lens.tokens == count
    expected = (expected / count).float()  # as a file keeps it
    assert allclose(lens.matrices[0], expected, 1e-7)


def test_rows_of_several_pages_are_those_of_each(tiny: fm.Model, tmp_path: Path) -> None:
    """A row would be of another text than the provenance says."""
    three = jacobian_lens(tiny, tmp_path / "three", batch_tokens=12)
    one = [jacobian_lens(tiny, tmp_path / str(seed), batch_tokens=1000, pages=1, seed=seed) for seed in (0, 1)]
    again = jacobian_lens(tiny, tmp_path / "again", batch_tokens=1000)  # three pages of the same texts, counted once
    assert (again.tokens, again.sequences) == (one[0].tokens, one[0].sequences)
    assert allclose(one[0].matrices[0], one[1].matrices[0], 1e-5)  # all texts, whatever the draw
    assert three.sequences == 3
    assert three.errors[0] != three.errors[0]  # one sequence a row: nothing to tell an error from
    assert not torch.allclose(three.matrices[0], one[0].matrices[0], atol=1e-3)


def test_the_error_is_that_of_lenses_of_other_texts(atlas: fm.Model) -> None:
    """What is said of how well J is known would be of something else: the shipped lens against one of little text."""
    found = load_lens(atlas)
    assert found is not None
    layers = PlainLayers(atlas)
    rng = np.random.default_rng(5)
    facts = fm.load_facts("atlas")
    texts = [atlas.tokenize(facts[int(i)].text) for i in rng.choice(len(facts), 12, replace=False)]
    rows = [3, 77, 130, 200]
    sums = torch.zeros(atlas.n_layers - 1, len(rows), atlas.d_model, dtype=torch.float64)
    for text in texts:
        tokens = torch.tensor([text])
        counted = torch.ones_like(tokens, dtype=torch.bool)
        counted[:, 0] = False
        stream = streams(layers, tokens)
        sums += torch.stack([jacobian_row(stream, counted, row)[:, 0] for row in rows], dim=1)
    mean = sums / sum(len(text) - 1 for text in texts)
    for layer in range(atlas.n_layers - 1):
        own = found.matrices[layer][rows].double()
        cosine = torch.nn.functional.cosine_similarity(mean[layer], own, dim=1)
        assert float(cosine.min()) > 0.5


def test_transformer_lens_has_the_same_matrices(make_tiny: Callable[..., fm.Model]) -> None:
    """Peers would not find our lens in theirs: same sums on the residual stream, for the positions that it takes."""
    peer = pytest.importorskip(
        "transformer_lens.tools.analysis.jacobian_lens", reason="this TransformerLens has no Jacobian lens"
    )
    model = make_tiny()
    theirs = peer.JacobianLens.fit(
        model.to_bridge(), [PROMPT], corpus="one prompt", skip_first_positions=1, show_progress=False, dim_batch=4
    )
    tokens = torch.tensor([model.tokenize(PROMPT, prepend_bos=True)])
    counted = torch.ones_like(tokens, dtype=torch.bool)
    counted[:, [0, -1]] = False  # its valid positions: not the first ones, and not the last
    stream = streams(PlainLayers(model), tokens)
    ours = torch.stack([jacobian_row(stream, counted, row)[:, 0] for row in range(model.d_model)], dim=1)
    assert list(theirs.jacobians) == list(range(model.n_layers - 1))
    for layer, matrix in theirs.jacobians.items():
        assert allclose(ours[layer] / int(counted.sum()), matrix, 1e-5)


# -- published lenses ------------------------------------------------------------------------------------------------


def published(path: Path, model: fm.Model, **fields: Any) -> Path:
    """As anthropics/jacobian-lens writes it, of a lens that sums the rows of one text."""
    tokens = torch.tensor([model.tokenize(PROMPT)])
    stream = streams(PlainLayers(model), tokens)
    rows = [jacobian_row(stream, torch.ones_like(tokens, dtype=torch.bool), i)[:, 0] for i in range(model.d_model)]
    j = dict(enumerate(torch.stack(rows, dim=1) / tokens.shape[1]))
    content = {"J": j, "n_prompts": 1, "source_layers": sorted(j), "d_model": model.d_model, **fields}
    torch.save(content, path)
    return path


def test_a_published_lens_maps_a_block_s_output_to_the_last_one_s(
    make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Transposed, of another layer or of another place, it would still give tokens. The change of the last block's
    output, summed over positions, when a vector is added to the block's output at every position is n J v: where J
    sums over t ≤ t′ and averages over t. By central differences, which no order of the axes can share."""
    model = make_tiny(dtype="float64")
    lens = load_lens(model, published(tmp_path / "lens.pt", model))
    assert lens is not None
    tokens = torch.tensor([model.tokenize(PROMPT)])
    vector = torch.randn(model.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    blocks = model.hf_model.transformer.h
    ends: list[Tensor] = []
    for step in (1e-4, -1e-4):

        def add(_module: Any, _args: Any, output: Any, step: float = step) -> Any:
            changed = first_tensor(output) + step * vector
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        handles = [
            blocks[0].register_forward_hook(add),
            blocks[-1].register_forward_hook(lambda _m, _a, out: ends.append(first_tensor(out).sum((0, 1)))),
        ]
        with torch.no_grad():
            model.hf_model(input_ids=tokens, use_cache=False)
        for handle in handles:
            handle.remove()
    expected = (ends[0] - ends[1]) / 2e-4 / tokens.shape[1]
    assert allclose(lens.apply(vector, 0), expected, 1e-6)
    assert not torch.allclose(vector @ lens.matrices[0].double(), expected, atol=1e-2)


def test_a_published_lens_says_what_is_known(make_tiny: Callable[..., fm.Model], tmp_path: Path) -> None:
    """A text, an error or weights that nobody named would be made up."""
    model = make_tiny()
    about = {"corpus": "wikitext", "transformers_version": "5.0.0", "target_layer": model.n_layers - 1}
    path = published(tmp_path / "lens.pt", model, metadata=about, n_prompts=3)
    lens = load_lens(model, path)
    assert lens is not None
    assert (lens.tokens, lens.sequences, lens.text) == (None, 3, "3 prompts of wikitext")
    assert (lens.provenance["transformers_version"], lens.provenance["published"]) == ("5.0.0", "lens.pt")
    assert np.isnan(lens.errors[0])
    table = fm.project(model, 0, 1, lens=path)
    assert table.attrs["provenance"]["lens"] == "jacobian (3 prompts of wikitext, published)"
    assert JacobianLens.load(lens.save(tmp_path / "ours")).to_dict() == lens.to_dict()
    with random_edit(model, (0,)).applied(model), refuses(ModelError, ValueError, "without the edits"):
        load_lens(model, path)


def test_some_layers_are_enough(atlas: fm.Model, tmp_path: Path) -> None:
    """Publishers leave layers out; another layer's matrix would be taken for them."""
    width = atlas.d_model
    path = published(tmp_path / "lens.pt", atlas, J={3: 2 * torch.eye(width, dtype=torch.float16)})
    lens = load_lens(atlas, path)
    assert lens is not None
    assert lens.to_frame()["layer"].tolist() == [3, atlas.n_layers - 1]
    assert torch.equal(lens.apply(torch.ones(width), 3), 2 * torch.ones(width))
    assert JacobianLens.load(lens.save(tmp_path / "ours")).layers.equals(lens.layers)
    with refuses(InputError, ValueError, "no layer 2", "only 3"):
        fm.project(atlas, 2, 1, lens=lens)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_published_is_the_lens(dtype: Any, tiny: fm.Model, lens: JacobianLens, tmp_path: Path) -> None:
    """And knows its weights when it comes back."""
    path = lens.publish(tmp_path / "lens.pt", dtype)
    content = torch.load(path, weights_only=True)
    assert (content["source_layers"], content["d_model"], content["n_prompts"]) == ([0], 16, lens.sequences)
    assert content["metadata"]["provenance"]["transformers"] == transformers.__version__
    read = load_lens(tiny, path)
    assert read is not None
    assert allclose(read.matrices[0], lens.matrices[0], 0.0 if dtype == "float32" else 1e-3)
    assert {**read.to_dict(), "layers": 0} == {**lens.to_dict(), "layers": 0}


def test_transformer_lens_reads_what_is_published(lens: JacobianLens, tmp_path: Path) -> None:
    peer = pytest.importorskip(
        "transformer_lens.tools.analysis.jacobian_lens", reason="this TransformerLens has no Jacobian lens"
    )
    theirs = peer.JacobianLens.load(str(lens.publish(tmp_path / "lens.pt", "float32")))
    vectors = torch.randn(3, lens.d_model, generator=torch.Generator().manual_seed(1))
    assert allclose(theirs.transport(vectors, 0), lens.apply(vectors, 0), 1e-6)


class Code:
    """What a pickle runs when it is opened."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_a_published_lens_that_was_trained(tiny: fm.Model, tmp_path: Path) -> None:
    """Parameters, which gradients are wanted of, would end in a raw error."""
    file = published(tmp_path / "lens.pt", tiny, J={0: torch.nn.Parameter(2 * torch.eye(16))})
    rows = torch.randn(3, 16)
    assert allclose(load_lens(tiny, file).apply(rows, 0).numpy(), 2 * rows, 1e-6)


def test_what_is_no_published_lens(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code in a pickle would run; a matrix of another model would be read as this one's."""
    monkeypatch.chdir(tmp_path)
    eye, path = torch.eye(16), tmp_path / "lens.pt"
    broken: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
        ({"metadata": {"who": Code()}}, FileError, ["may run code"]),
        ({"J": {0: torch.eye(8)}}, FileError, ["layer 0", "[8, 8]", "[16, 16]"]),
        ({"J": {0: eye[0]}}, FileError, ["layer 0", "[16]"]),
        ({"J": {0: eye.long()}}, FileError, ["0"]),
        ({"J": {0: eye.to_sparse()}}, FileError, ["0"]),
        ({"J": {0: eye.to("meta")}}, FileError, ["0"]),
        ({"J": {"first": eye}}, FileError, ["'first'"]),
        ({"J": {0: eye / 0}}, FileError, ["layer 0", "finite"]),
        ({"J": {}}, FileError, ["no published Jacobian lens"]),
        ({"J": eye}, FileError, ["no published Jacobian lens"]),
        ({"d_model": "16"}, FileError, ["no published Jacobian lens", "d_model"]),
        ({"J": {0: torch.eye(8)}, "d_model": 8}, ModelError, ["width 8", "16"]),
        ({"J": {0: eye, 1: eye}}, ModelError, ["layers 1", "below 1"]),
        ({"metadata": {"target_layer": 0}}, ModelError, ["layer 0", "below 1"]),
        ({"metadata": {"kind": "ffnmem jacobian lens"}}, FileError, ["damaged", "metadata"]),
    ]
    for fields, kind, named in broken:
        with refuses(kind, FfnmemError, *named):
            load_lens(tiny, published(path, tiny, **fields))
    assert not Path("ran").exists()
    torch.save([eye], path)
    with refuses(FileError, FfnmemError, "no published Jacobian lens"):
        load_lens(tiny, path)
    path.write_bytes(path.read_bytes()[:-40])
    with refuses(FileError, FfnmemError, "truncated or damaged"):
        load_lens(tiny, path)
    with refuses(FileError, FfnmemError, "load_lens(model, FILE)"):
        JacobianLens.load(published(path, tiny))


# -- values through it -----------------------------------------------------------------------------------------------


def test_the_last_layer_is_the_logit_lens(tiny: fm.Model, lens: JacobianLens) -> None:
    """Nothing stands behind it."""
    last = tiny.n_layers - 1
    pd.testing.assert_frame_equal(
        fm.project(tiny, last, side="value", lens=lens).drop(columns="lens"),
        fm.project(tiny, last, side="value").drop(columns="lens"),
    )


@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_scores_are_those_of_what_arrives(basis: str, gated: fm.Model, tmp_path: Path) -> None:
    """A norm behind the FFN comes before J, the final norm's gain after it."""
    lens = jacobian_lens(gated, tmp_path / "lens")
    rows = [1, 5, 9]
    values = gated.ffn[0].values.detach()[rows]
    post = gated.norm_after(0)
    written = values if post is None else values * post.gain
    arrived = written.double() @ lens.matrices[0].double().T
    if basis == "folded":
        arrived = arrived * gated.layout.norm(gated.layout.final_norm, gated.d_model).gain  # type: ignore[union-attr]
    expected = arrived @ gated.unembedding.detach().double().T
    table = fm.project(gated, 0, rows, k=gated.d_vocab, basis=basis, lens=lens)
    assert set(table["side"]) == {"value"}
    assert set(table["lens"]) == {"jacobian"}
    for place, neuron in enumerate(rows):
        found = table[(table["neuron"] == neuron) & (table["sign"] == "promoted")]
        assert allclose(found["score"].to_numpy(), expected[place][found["token_id"].tolist()], 1e-6)


def test_promoters_have_its_scores(tiny: fm.Model, lens: JacobianLens) -> None:
    """The neurons behind a token would be others than those that project names."""
    whole = fm.project(tiny, k=tiny.d_vocab, lens=lens)
    of_token = whole[(whole["token_id"] == 7) & (whole["sign"] == "promoted")]
    best = of_token.sort_values("score", ascending=False).head(4)
    found = fm.vocabulary.promoters(tiny, 7, k=4, lens=lens)
    top = found[found["sign"] == "promoted"]
    assert top[["layer", "neuron"]].values.tolist() == best[["layer", "neuron"]].values.tolist()
    assert allclose(top["score"].to_numpy(), best["score"].to_numpy(), 1e-6)
    assert found.attrs["provenance"]["lens"].startswith("jacobian (")


def test_its_null_and_its_files_say_it(tiny: fm.Model, lens: JacobianLens, tmp_path: Path) -> None:
    """Scores through J against a null that is not would all stand out; two tables could not be told apart."""
    found = fm.vocabulary.projection_null(tiny, 0, 3, draws=20, lens=lens)
    plain = fm.vocabulary.projection_null(tiny, 0, 3, draws=20, side="value")
    assert set(found["lens"]) == {"jacobian"}
    assert not np.allclose(found["null_mean"], plain["null_mean"])
    file = fm.project(tiny, k=2, lens=lens, out=tmp_path / "lens.parquet")
    assert set(read_projection(file)["lens"]) == {"jacobian"}


# -- made once, kept and found ---------------------------------------------------------------------------------------


class Stopped(BaseException):
    """As if the process had been killed."""


def test_one_that_was_killed_goes_on_to_the_same_bytes(tiny: fm.Model, tmp_path: Path) -> None:
    """A row that is lost or taken twice would not be seen in the result."""
    whole, broken = tmp_path / "whole.safetensors", tmp_path / "broken.safetensors"
    jacobian_lens(tiny, whole)
    for stop in (3, 9):

        def stopping(_phase: str, done: int, _total: int, stop: int = stop) -> None:
            if done == stop:
                raise Stopped

        with pytest.raises(Stopped):
            jacobian_lens(tiny, broken, checkpoint_seconds=0.0, progress=stopping)
        assert (tmp_path / "broken.safetensors.partial" / STATE).exists()
    with refuses(FileError, OSError, "was begun with"):
        jacobian_lens(tiny, broken, seed=4)
    seen: list[int] = []
    jacobian_lens(tiny, broken, progress=lambda _phase, done, _total: seen.append(done))
    assert seen == list(range(9, tiny.d_model + 1))
    assert broken.read_bytes() == whole.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("broken")] == [broken.name]


def test_a_finished_one_is_not_made_again(tiny: fm.Model, tmp_path: Path) -> None:
    first = jacobian_lens(tiny, tmp_path / "lens")
    seen: list[int] = []
    again = jacobian_lens(tiny, tmp_path / "lens", progress=lambda _phase, done, _total: seen.append(done))
    assert not seen
    assert torch.equal(first.matrices[0], again.matrices[0])
    with refuses(FileError, OSError, "another lens", "seed 0, not 1"):
        jacobian_lens(tiny, tmp_path / "lens", seed=1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_file_is_the_lens(dtype: str, lens: JacobianLens, tmp_path: Path) -> None:
    read = JacobianLens.load(lens.save(tmp_path / "copy", dtype))
    assert allclose(read.matrices[0], lens.matrices[0], 0.0 if dtype == "float32" else 1e-3)
    assert (read.errors, read.provenance, read.fingerprint) == (lens.errors, lens.provenance, lens.fingerprint)
    data = bytearray((tmp_path / "copy").read_bytes())
    data[-3] ^= 0x40
    (tmp_path / "copy").write_bytes(data)
    with refuses(FileError, OSError, "damaged"):
        JacobianLens.load(tmp_path / "copy").apply(torch.ones(1, lens.d_model), 0)


def test_it_is_found_by_name(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FFNMEM_CACHE", str(tmp_path))
    with refuses(InputError, ValueError, "no Jacobian lens", "ffnmem lens"):
        fm.project(tiny, 0, 1, lens="jacobian")
    made = fm.vocabulary.jacobian_lens(tiny, TEXTS, **SMALL)
    assert lens_file(tiny.fingerprint).is_file()
    by_name = fm.project(tiny, 0, 1, lens="jacobian")
    pd.testing.assert_frame_equal(by_name, fm.project(tiny, 0, 1, lens=made))
    pd.testing.assert_frame_equal(by_name, fm.project(tiny, 0, 1, lens=str(lens_file(tiny.fingerprint))))
    with refuses(InputError, ValueError, "'tuned'", "'jacobian'"):
        fm.project(tiny, 0, 1, lens="tuned")


def test_an_edited_model_s_is_asked_for(make_tiny: Callable[..., fm.Model], lens: JacobianLens) -> None:
    """What an edit wrote would be read through layers that are no longer there, unless its user wants that."""
    model = make_tiny()
    with random_edit(model, (0,)).applied(model):
        with refuses(ModelError, ValueError, "without the edits", "edited=True"):
            fm.project(model, 0, 1, lens=lens)
        allowed = fm.vocabulary.load_lens(model, lens, edited=True)
        assert allowed is not None
        table = fm.project(model, 0, 1, lens=allowed)
        assert "before the edits" in table.attrs["provenance"]["lens"]
        w = side_tokens(model, "value").double()
        scores = side_vectors(model, 0, [1], "value", "folded", allowed).double() @ w.T
        assert allclose(table["score"].iloc[0], float(scores.max()), 1e-5)
    assert len(fm.project(model, 0, 1, lens=lens))


def test_what_it_says(lens: JacobianLens) -> None:
    frame = lens.to_frame()
    assert frame["layer"].tolist() == [0, 1]
    assert frame.iloc[1][["error", "norm", "identity"]].tolist() == [0.0, 1.0, 1.0]
    matrix = lens.matrices[0].double()
    assert allclose(frame["norm"][0], matrix.norm() / 4, 1e-9)
    nearest = torch.eye(16, dtype=torch.float64) * matrix.trace() / 16
    assert allclose(frame["identity"][0], nearest.square().sum() / matrix.square().sum(), 1e-9)
    assert lens.summary() in repr(lens)
    assert lens.to_dict()["provenance"]["corpus_hash"] == lens.corpus_hash


def test_mistakes(atlas: fm.Model, tiny: fm.Model, lens: JacobianLens, tmp_path: Path) -> None:
    refused: list[tuple[Callable[[], Any], type[Exception], list[str]]] = [
        (lambda: load_lens(tiny, tmp_path / "none"), FileError, ["no Jacobian lens at", str(tmp_path / "none")]),
        (lambda: load_lens(tiny, "none.safetensors"), FileError, ["no Jacobian lens at", "none.safetensors"]),
        (lambda: load_lens(tiny, "jacobain"), InputError, ["'jacobain'", "'jacobian' was meant"]),
        (lambda: lens.apply(torch.ones(1, 16), 2), InputError, ["layer 2", "0 to 1"]),
        (lambda: lens.apply(torch.ones(1, 3), 0), InputError, ["16", "3"]),
        (lambda: jacobian_lens(tiny, tmp_path / "x", dtype="float8"), InputError, ["dtype", "'float8'"]),
        (lambda: fm.project(tiny, 0, 1, side="key", lens=lens), InputError, ["Jacobian lens", "values"]),
        (lambda: fm.vocabulary.promoters(tiny, 7, side="key", lens=lens), InputError, ["Jacobian lens", "values"]),
        (lambda: fm.project(atlas, 0, 1, lens=lens), ModelError, [tiny.fingerprint, atlas.fingerprint]),
    ]
    for call, kind, named in refused:
        with refuses(kind, FfnmemError, *named):
            call()
    assert load_lens(tiny, "logit") is None


# -- cards and reports -----------------------------------------------------------------------------------------------


def test_cards_read_values_through_it(
    gated: fm.Model, gated_store: fm.scanning.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card would name what the value writes and call it what arrives; keys stay as they are."""
    lens = jacobian_lens(gated, tmp_path / "lens")
    store = fm.open_store(gated_store.folder, model=gated)
    plain, through = store.neuron(0, 3), store.neuron(0, 3, lens=lens)
    assert (plain.lens, through.lens) == ("logit", "jacobian")
    expected = fm.project(gated, 0, 3, lens=lens)
    assert through.tokens("promoted") == expected[expected["sign"] == "promoted"]["token"].tolist()
    assert through.tokens("promoted", "gate") == plain.tokens("promoted", "gate")
    assert "jacobian" in str(through.heading()["lens"])
    assert not plain.heading()["lens"]
    page = fm.pages.neurons(store, ["0.3"], tmp_path / "card.html", shade=False, lens=lens)
    assert "jacobian: the value as it arrives" in page.read_text("utf-8")


def test_reports_say_it(tiny: fm.Model, lens: JacobianLens, tmp_path: Path) -> None:
    page = fm.report(tiny, PROMPT, out=tmp_path / "report.html", lens=lens).read_text("utf-8")
    assert "(the jacobian lens)" in page
    assert "jacobian (" in page
    assert "jacobian" not in fm.report(tiny, PROMPT, out=tmp_path / "plain.html").read_text("utf-8")
