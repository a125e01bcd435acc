"""The Jacobian lens: its matrices, how they are made, kept, found and published, and what is read through them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from ffnmem.vocabulary.published_lenses import read_published

from ..editing.edits import made as random_edit
from ..helpers import PROMPT, Pair, allclose, printed, refuses

TEXTS = [PROMPT, "The city of Paris", " is in the Tower of London is", "The Colosseum is in Rome"]
SMALL: dict[str, Any] = {"context": 12, "page_tokens": 24, "pages": 3}


def jacobian_lens(model: fm.Model, out: Path, **more: Any) -> JacobianLens:
    return fm.vocabulary.jacobian_lens(model, TEXTS, out, **{**SMALL, **more})


@pytest.fixture(scope="module")
def lens(tiny: fm.Model, tmp_path_factory: pytest.TempPathFactory) -> JacobianLens:
    return jacobian_lens(tiny, tmp_path_factory.mktemp("lens") / "lens.safetensors")


def brute(pair: Pair, layer: int, tokens: Tensor) -> Tensor:
    """∂h_final,t′/∂h_l,t, ``[t′, i, t, j]``: of what the last block writes by what is added behind a block."""
    blocks = pair.blocks()

    def final(delta: Tensor) -> Tensor:
        found: list[Tensor] = []

        def add(_module: Any, _args: Any, output: Any) -> Any:
            changed = first_tensor(output) + delta
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        handles = [
            blocks[layer].register_forward_hook(add),
            blocks[-1].register_forward_hook(lambda _m, _a, out: found.append(first_tensor(out))),
        ]
        pair.hf.base_model(input_ids=tokens, use_cache=False)
        for handle in handles:
            handle.remove()
        return found[0][0]

    nothing = torch.zeros(1, tokens.shape[1], pair.model.d_model, dtype=torch.float64)
    whole: Any = torch.autograd.functional.jacobian(final, nothing)  # type: ignore[no-untyped-call]
    return whole[:, :, 0]


def summed(model: fm.Model, ids: Sequence[int], rows: Sequence[int], counted: Sequence[int]) -> Tensor:
    """``[layers, rows, d_model]``: our rows of one text, of the positions that count."""
    tokens, mask = torch.tensor([list(ids)]), torch.zeros(1, len(ids), dtype=torch.bool)
    mask[:, list(counted)] = True
    stream = streams(PlainLayers(model), tokens, np.array([len(ids)]))
    return torch.stack([jacobian_row(stream, mask, row)[:, 0] for row in rows], dim=1)


# -- the matrices ----------------------------------------------------------------------------------------------------


def test_rows_are_the_jacobian_s_on_every_architecture(pair64: Pair) -> None:
    """A block that adds in place, writes beside its attention or norms what it writes would have another derivative."""
    model, ids, counted = pair64.model, [3, 1, 4, 1, 5], [1, 2, 3]
    found = summed(model, ids, range(model.d_model), counted)
    for layer in range(model.n_layers - 1):
        expected = brute(pair64, layer, torch.tensor([ids]))[counted][:, :, counted].sum((0, 2))
        scale = max(1.0, float(expected.abs().max()))
        assert allclose(found[layer] / scale, expected / scale, pair64.exact(1e-10))


def test_a_lens_is_their_mean_over_the_positions_of_a_text(tiny_hf: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Pads, BOS, or a mean over texts of unlike length in place of positions, would be another lens; its error is that
    of a ratio of sums over sequences."""
    model = fm.load(tiny_hf, tokenizer=tokenizer, dtype="float64")
    lens = jacobian_lens(model, tmp_path / "lens", pages=1, page_tokens=1000)
    pair, sums, counts = Pair("gpt2", model.hf_model, model), [], []
    for text in TEXTS:
        ids = torch.tensor(model.tokenize(text))
        for first in range(1, len(ids), 11):
            tokens = torch.cat([ids[:1], ids[first : first + 11]])[None]
            sums.append(brute(pair, 0, tokens)[1:, :, 1:].sum((0, 2)))
            counts.append(tokens.shape[1] - 1)
    found, n = torch.stack(sums), len(counts)
    mean = found.sum(0) / sum(counts)
    assert (lens.tokens, lens.sequences) == (sum(counts), n)
    assert allclose(lens.matrices[0], mean.float(), 1e-7)  # as a file keeps it
    off = found - torch.tensor(counts, dtype=torch.float64)[:, None, None] * mean
    assert allclose(lens.errors[0], (off.square().sum() / sum(counts) ** 2 * n / (n - 1)).sqrt() / mean.norm(), 1e-6)
    one, last = lens.to_frame().to_dict("records")
    assert last == {"layer": 1, "relative_error": 0.0, "norm": 1.0, "identity": 1.0}
    assert allclose(one["norm"], mean.norm() / 4, 1e-6)
    nearest = torch.eye(16, dtype=torch.float64) * mean.trace() / 16
    assert allclose(one["identity"], nearest.square().sum() / mean.square().sum(), 1e-6)
    assert lens.text in "".join(printed(lens.sheet()))


def test_rows_of_several_pages_are_those_of_each(tiny: fm.Model, tmp_path: Path) -> None:
    """A row would be of another text than the provenance says."""
    three = jacobian_lens(tiny, tmp_path / "three", page_tokens=12)
    one = [jacobian_lens(tiny, tmp_path / str(seed), page_tokens=1000, pages=1, seed=seed) for seed in (0, 1)]
    again = jacobian_lens(tiny, tmp_path / "again", page_tokens=1000)  # three pages of the same texts, counted once
    assert (again.tokens, again.sequences) == (one[0].tokens, one[0].sequences)
    assert allclose(one[0].matrices[0], one[1].matrices[0], 1e-5)  # all texts, whatever the draw
    assert three.sequences == 3
    assert np.isnan(three.errors[0])  # one sequence a row: nothing to tell an error from
    assert not torch.allclose(three.matrices[0], one[0].matrices[0], atol=1e-3)


@pytest.mark.exhaustive  # of a file that does not change
def test_the_shipped_lens_is_the_model_s(atlas: fm.Model) -> None:
    """Against one of little text: of other weights, or of other layers, it would have nothing to do with it."""
    found, rows = load_lens(atlas), [3, 77, 130, 200]
    assert found is not None
    texts = [atlas.tokenize(fact.text) for fact in fm.load_facts("atlas")[::400]]
    mean = torch.stack([summed(atlas, ids, rows, range(1, len(ids))) for ids in texts]).sum(0)
    for layer in range(atlas.n_layers - 1):
        own = found.matrices[layer][rows].double()
        assert float(torch.nn.functional.cosine_similarity(mean[layer], own, dim=1).min()) > 0.5


@pytest.mark.exhaustive
def test_transformer_lens_has_the_same_matrices_and_reads_ours(tiny: fm.Model, tmp_path: Path) -> None:
    """Peers would not find our lens in theirs: same sums on the residual stream, for the positions that it takes."""
    peer = pytest.importorskip(
        "transformer_lens.tools.analysis.jacobian_lens", reason="this TransformerLens has no Jacobian lens"
    )
    theirs = peer.JacobianLens.fit(
        tiny.to_bridge(), [PROMPT], corpus="one prompt", skip_first_positions=1, show_progress=False, dim_batch=4
    )
    ids = tiny.tokenize(PROMPT, prepend_bos=True)
    counted = range(1, len(ids) - 1)  # its valid positions: not the first ones, and not the last
    ours = summed(tiny, ids, range(tiny.d_model), counted)
    assert list(theirs.jacobians) == list(range(tiny.n_layers - 1))
    for layer, matrix in theirs.jacobians.items():
        assert allclose(ours[layer] / len(counted), matrix, 1e-5)
    lens = jacobian_lens(tiny, tmp_path / "lens")
    read = peer.JacobianLens.load(str(lens.publish(tmp_path / "lens.pt", "float32")))
    vectors = torch.randn(3, lens.d_model, generator=torch.Generator().manual_seed(1))
    assert allclose(read.transport(vectors, 0), lens.apply(vectors, 0), 1e-6)


# -- published lenses ------------------------------------------------------------------------------------------------


def published(path: Path, **fields: Any) -> Path:
    """As anthropics/jacobian-lens writes it, for a model of width 16 unless told otherwise."""
    J = fields.get("J", {0: torch.randn(16, 16, generator=torch.Generator().manual_seed(0))})
    torch.save({"J": J, "n_prompts": 1, "source_layers": sorted(J), "d_model": 16, **fields}, path)
    return path


def test_a_published_lens_maps_a_block_s_output_to_the_last_one_s(
    make_tiny: Callable[..., fm.Model], tmp_path: Path
) -> None:
    """Transposed or of another place, it would still give tokens. Rows of J are for dimensions of the last block's
    output: where a vector is added behind the block at every position, that output changes by n J v, summed."""
    model = make_tiny(dtype="float64")
    tokens = torch.tensor([model.tokenize(PROMPT)])
    whole = brute(Pair("gpt2", model.hf_model, model), 0, tokens)
    file = published(tmp_path / "lens.pt", J={0: whole.sum((0, 2)) / tokens.shape[1]})
    lens = load_lens(model, file)
    assert lens is not None
    vector = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert allclose(lens.apply(vector, 0), (whole.sum(0).sum(1) @ vector) / tokens.shape[1], 1e-6)


def test_a_published_lens_says_what_is_known(
    make_tiny: Callable[..., fm.Model], atlas: fm.Model, tmp_path: Path
) -> None:
    """A text, an error or weights that nobody named would be made up, or another layer's matrix be taken for one."""
    model = make_tiny()
    about = {"corpus": "wikitext", "transformers_version": "5.0.0", "target_layer": model.n_layers - 1}
    path = published(tmp_path / "lens.pt", metadata=about, n_prompts=3)
    lens = load_lens(model, path)
    assert lens is not None
    assert (lens.tokens, lens.sequences, lens.text) == (None, 3, "3 prompts of wikitext")
    assert (lens.provenance["transformers_version"], lens.provenance["published"]) == ("5.0.0", "lens.pt")
    assert np.isnan(lens.errors[0])
    table = fm.project(model, 0, 1, lens=path).to_frame()
    assert table.attrs["provenance"]["lens"] == "jacobian (3 prompts of wikitext, published)"
    assert JacobianLens.load(lens.save(tmp_path / "ours")).to_dict() == lens.to_dict()
    with random_edit(model, (0,)).applied(model), refuses(ModelError, ValueError, "without the edits"):
        load_lens(model, path)
    width = atlas.d_model
    trained = torch.nn.Parameter(2 * torch.eye(width, dtype=torch.float16))  # which gradients are wanted of
    some = load_lens(atlas, published(tmp_path / "some.pt", J={3: trained}, d_model=width))
    assert some is not None
    assert some.to_frame()["layer"].tolist() == [3, atlas.n_layers - 1]
    assert torch.equal(some.apply(torch.ones(width), 3), 2 * torch.ones(width))
    with refuses(InputError, ValueError, "no layer 2", "only 3"):
        fm.project(atlas, 2, 1, lens=some)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_kept_or_published_is_the_lens(dtype: Any, tiny: fm.Model, lens: JacobianLens, tmp_path: Path) -> None:
    """And knows its weights when it comes back."""
    path = lens.publish(tmp_path / "lens.pt", dtype)
    content = torch.load(path, weights_only=True)
    assert (content["source_layers"], content["d_model"], content["n_prompts"]) == ([0], 16, lens.sequences)
    assert content["metadata"]["provenance"]["transformers"] == transformers.__version__
    kept = lens.save(tmp_path / "copy", dtype)
    for read in (load_lens(tiny, path), JacobianLens.load(kept)):
        assert read is not None
        assert allclose(read.matrices[0], lens.matrices[0], 0.0 if dtype == "float32" else 1e-3)
        assert {**read.to_dict(), "layers": 0} == {**lens.to_dict(), "layers": 0}
    data = bytearray(kept.read_bytes())
    data[-3] ^= 0x40
    kept.write_bytes(data)
    with refuses(FileError, OSError, "damaged"):
        JacobianLens.load(kept).apply(torch.ones(1, lens.d_model), 0)


class Code:
    """What a pickle runs when it is opened."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_what_is_no_published_lens(tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code in a pickle would run; a matrix of another model would be read as this one's."""
    monkeypatch.chdir(tmp_path)
    eye, path = torch.eye(16), tmp_path / "lens.pt"
    broken: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
        ({"metadata": {"who": Code()}}, FileError, ["may run code"]),
        ({"J": {0: torch.eye(8)}}, FileError, ["layer 0", "[8, 8]", "[16, 16]"]),
        ({"J": {0: eye.to_sparse()}}, FileError, ["0"]),
        ({"J": {"first": eye}}, FileError, ["'first'"]),
        ({"J": {0: eye / 0}}, FileError, ["layer 0", "finite"]),
        ({"J": {0: torch.zeros(1).expand(60_000, 60_000)}, "d_model": 60_000}, FileError, ["layer 0", "row by row"]),
        ({"J": dict.fromkeys(range(99), eye)}, FileError, ["overlap"]),
        ({"metadata": {"prompts": "x" * (1 << 20)}}, FileError, ["description", "1,048,576"]),
        ({"d_model": "16"}, FileError, ["no published Jacobian lens", "d_model"]),
        ({"J": {0: torch.eye(8)}, "d_model": 8}, ModelError, ["width 8", "16"]),
        ({"metadata": {"target_layer": 0}}, ModelError, ["layer 0", "below 1"]),
        ({"metadata": {"kind": "ffnmem jacobian lens"}}, FileError, ["damaged", "metadata"]),
    ]
    for fields, kind, named in broken:
        with refuses(kind, FfnmemError, *named):
            load_lens(tiny, published(path, **fields))
    assert not Path("ran").exists()
    path.write_bytes(path.read_bytes()[:-40])
    with refuses(FileError, FfnmemError, "truncated or damaged"):
        load_lens(tiny, path)
    with zipfile.ZipFile(published(path)) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with refuses(FileError, FfnmemError, "compressed"):
        load_lens(tiny, path)
    with refuses(FileError, FfnmemError, "load_lens(model, FILE)"):
        JacobianLens.load(published(path))


@pytest.mark.parametrize("ours", [False, True])
def test_a_damaged_published_lens_is_never_read_as_other_numbers(
    ours: bool, lens: JacobianLens, tmp_path: Path
) -> None:
    """torch.load looks at no checksum: half of all single damages gave other matrices."""
    path = lens.publish(tmp_path / "lens.pt") if ours else published(tmp_path / "lens.pt")
    whole, good, read = path.read_bytes(), read_published(path), 0
    generator = np.random.default_rng(0)
    for at, bit in zip(generator.integers(len(whole), size=150), generator.integers(8, size=150), strict=True):
        data = bytearray(whole)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        try:
            found = read_published(path)
        except FileError:
            continue
        read += 1
        assert {**found, "J": 0} == {**good, "J": 0}
        assert all(torch.equal(found["J"][layer], good["J"][layer]) for layer in good["J"])
    assert 0 < read < 75  # in what stands between the entries


# -- values through it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_scores_are_those_of_what_arrives(
    basis: Any, gated: fm.Model, gated_store: fm.scanning.Store, tmp_path: Path
) -> None:
    """A norm behind the FFN comes before J, the final norm's gain after it; so for promoters and cards."""
    lens = jacobian_lens(gated, tmp_path / "lens")
    values, post = gated.ffn[0].values.detach(), gated.norm_after(0)
    written = values if post is None else values * post.gain
    arrived = written.double() @ lens.matrices[0].double().T
    if basis == "folded":
        arrived = arrived * gated.layout.norm(gated.layout.final_norm, gated.d_model).gain  # type: ignore[union-attr]
    expected = arrived @ gated.unembedding.detach().double().T
    table = fm.project(gated, 0, k=gated.d_vocab, basis=basis, lens=lens).to_frame()
    assert set(table["side"]) == {"value"}
    assert set(table["lens"]) == {"jacobian"}
    for neuron, rows in table[table["sign"] == "promoted"].groupby("neuron"):
        assert allclose(rows["score"].to_numpy(), expected[neuron][rows["token_id"].tolist()], 1e-6)
    found = fm.vocabulary.promoters(gated, 7, layer=0, k=4, lens=lens, basis=basis).to_frame()
    assert allclose(found["score"][:4].to_numpy(), expected[:, 7].topk(4).values, 1e-6)
    assert found.attrs["provenance"]["lens"] == f"jacobian ({lens.text}, seed 0)"
    card = fm.open_store(gated_store.folder, model=gated).neuron(0, 3, lens=lens)
    promoted = fm.project(gated, 0, 3, lens=lens, side="value").to_frame().query("sign == 'promoted'")
    assert (card.lens, card.tokens("promoted")) == ("jacobian", promoted["token"].tolist())


# -- made once, kept and found ---------------------------------------------------------------------------------------


def test_one_that_was_killed_goes_on_to_the_same_bytes(tiny: fm.Model, tmp_path: Path) -> None:
    """A row that is lost or taken twice would not be seen in the result."""
    whole, broken = tmp_path / "whole.safetensors", tmp_path / "broken.safetensors"
    jacobian_lens(tiny, whole)
    for stop in (3, 9):

        def stopping(_phase: str, done: int, _total: int, stop: int = stop) -> None:
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            jacobian_lens(tiny, broken, checkpoint_seconds=0.0, progress=stopping)
        assert (tmp_path / "broken.safetensors.partial" / STATE).exists()
    with refuses(FileError, OSError, "was begun with"):
        jacobian_lens(tiny, broken, seed=4)
    seen: list[int] = []
    for _ in range(2):  # a finished one is not made again
        found = jacobian_lens(tiny, broken, progress=lambda _phase, done, _total: seen.append(done))
        assert seen == list(range(9, tiny.d_model + 1))
        assert broken.read_bytes() == whole.read_bytes()
        assert found.to_dict() == JacobianLens.load(whole).to_dict()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("broken")] == [broken.name]
    with refuses(FileError, OSError, "another lens", "seed 0, not 1"):
        jacobian_lens(tiny, broken, seed=1)


def test_it_is_found_by_name(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FFNMEM_CACHE", str(tmp_path))
    with refuses(InputError, ValueError, "no Jacobian lens", "ffnmem lens"):
        fm.project(tiny, 0, 1, lens="jacobian")
    made = fm.vocabulary.jacobian_lens(tiny, TEXTS, **SMALL)
    for source in ("jacobian", lens_file(tiny.fingerprint), str(lens_file(tiny.fingerprint))):
        pd.testing.assert_frame_equal(
            fm.project(tiny, 0, 1, lens=source).to_frame(), fm.project(tiny, 0, 1, lens=made).to_frame()
        )


def test_an_edited_model_s_is_asked_for(make_tiny: Callable[..., fm.Model], lens: JacobianLens) -> None:
    """What an edit wrote would be read through layers that are no longer there, unless its user wants that."""
    model = make_tiny()
    with random_edit(model, (0,)).applied(model):
        with refuses(ModelError, ValueError, "without the edits", "edited=True"):
            fm.project(model, 0, 1, lens=lens)
        allowed = fm.vocabulary.load_lens(model, lens, edited=True)
        assert allowed is not None
        table = fm.project(model, 0, 1, lens=allowed, basis="raw").to_frame()
        assert "before the edits" in table.attrs["provenance"]["lens"]
        scores = lens.matrices[0] @ model.ffn[0].values[1].detach() @ model.unembedding.detach().T
        assert allclose(table["score"].iloc[0], scores.max(), 1e-5)
    assert len(fm.project(model, 0, 1, lens=lens).to_frame())


def test_mistakes(atlas: fm.Model, tiny: fm.Model, lens: JacobianLens, tmp_path: Path) -> None:
    huge = replace(lens, matrices={0: torch.full((16, 16), 3e38)})  # scores would be no numbers, and shown as zeros
    refused: list[tuple[Callable[[], Any], type[Exception], list[str]]] = [
        (lambda: load_lens(tiny, tmp_path / "none"), FileError, ["no Jacobian lens at", str(tmp_path / "none")]),
        (lambda: load_lens(tiny, "jacobain"), InputError, ["'jacobain'", "'jacobian' was meant"]),
        (lambda: lens.apply(torch.ones(1, 16), 2), InputError, ["layer 2", "0 to 1"]),
        (lambda: lens.apply(torch.ones(1, 3), 0), InputError, ["16", "3"]),
        (lambda: fm.project(tiny, 0, 1, lens=huge), InputError, ["layer 0", "too large for float32"]),
        (lambda: fm.project(tiny, 0, 1, side="key", lens=lens), InputError, ["Jacobian lens", "values"]),
        (lambda: fm.project(atlas, 0, 1, lens=lens), ModelError, [tiny.fingerprint, atlas.fingerprint]),
    ]
    for call, kind, named in refused:
        with refuses(kind, FfnmemError, *named):
            call()
    assert load_lens(tiny, "logit") is None
    through, plain = (
        fm.project(tiny, -1, side="value", lens=one).to_frame().drop(columns="lens") for one in (lens, "logit")
    )
    pd.testing.assert_frame_equal(through, plain)  # nothing stands behind the last layer
