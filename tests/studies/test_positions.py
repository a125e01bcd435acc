"""Layers at single positions, against what hooks on the bridge see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import HookError
from ffnmem.models.layout import inner
from ffnmem.models.residual import passed_on
from ffnmem.studies import prefixes as module
from ffnmem.studies.prefixes import Lens, Positions, batches

from ..architectures import DECODERS
from ..helpers import OTHER_PROMPT, PROMPT, allclose, hook_count


def test_layers_are_the_bridges(architecture: fm.Model) -> None:
    """Coefficients, what FFNs add and residual streams of every layer, at the last token of prompts of two lengths."""
    texts = [PROMPT, OTHER_PROMPT, PROMPT]
    prompts = [architecture.tokenize(text) for text in texts]
    captured = fm.capture(architecture, texts)
    assert captured.residual is not None
    reader = Positions(architecture)
    seen = 0
    for rows, tokens, ends in batches([np.array(ids) for ids in prompts], architecture.device):
        found = reader.layers(tokens, ends)
        for place, row in enumerate(rows.tolist()):
            last = captured.length(row) - 1
            stream = captured.residual.embedding[row, last].clone()
            if captured.residual.position is not None:
                stream += captured.residual.position[row, last]
            for layer in range(architecture.n_layers):
                stream += captured.residual.attention[layer][row, last]
                assert allclose(found[layer].residual[place], stream, 1e-5)
                added = captured.ffn_out[layer][row, last]
                post = architecture.layout.blocks[layer].post
                if post is not None:  # a norm behind the FFN, as Gemma 2 has it
                    with torch.no_grad():
                        added = inner(post)(added)
                stream += added
                assert allclose(found[layer].coefficients[place], captured.coefficients[layer][row, last], 1e-5)
                assert allclose(found[layer].ffn[place], added, 1e-5)
                assert allclose(found[layer].out[place], stream, 1e-5)
            seen += 1
    assert seen == len(prompts)
    assert hook_count(reader.body) == 0


def test_lens_ends_in_the_models_own_logits(architecture: fm.Model) -> None:
    """Read after the last layer, the lens is the model."""
    captured = fm.capture(architecture, PROMPT, logits=True)
    assert captured.residual is not None
    assert captured.logits is not None
    lens = Lens(architecture)
    assert allclose(lens.logits(captured.residual.final_in[0]), captured.logits[0], 1e-5)
    top, probability = lens.top_and_probability(captured.residual.final_in[0], captured.logits[0].argmax(-1))
    assert top.tolist() == captured.logits[0].argmax(-1).tolist() == lens.top(captured.residual.final_in[0]).tolist()
    assert allclose(probability, captured.logits[0].softmax(-1).max(-1).values, 1e-5)


@pytest.mark.parametrize("name", ["Granite", "OLMo 2", "StableLM parallel", "Gemma 3", "Cohere"])
def test_other_ways_to_add_up(name: str, tokenizer: Any) -> None:
    """Writes that are scaled, normed behind, or added beside attention's: each layer begins where the last one ended,
    and what stands after the last is read as the model reads it."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer)
    captured = fm.capture(model, PROMPT, logits=True)
    assert captured.residual is not None
    assert captured.logits is not None
    layers = Positions(model).layers(captured.tokens, torch.tensor([captured.length() - 1]))
    stream = captured.residual.embedding[0, -1]
    for layer, found in enumerate(layers):
        assert allclose(found.residual[0], stream + captured.residual.attention[layer][0, -1], 1e-4)
        assert allclose(found.coefficients[0], captured.coefficients[layer][0, -1], 1e-5)
        stream = found.out[0]
    assert allclose(Lens(model).logits(layers[-1].out)[0], captured.logits[0, -1], 1e-5)


@pytest.mark.parametrize("basis", ["folded", "raw"])
def test_writes_are_scored_as_projections_are(architecture: fm.Model, basis: str) -> None:
    """A write is a value as the stream gets it: through the gain of a norm behind the FFN, if it is folded."""
    rows = fm.project(architecture, 1, k=1, basis=basis, side="value").query("sign == 'promoted'")
    lens = Lens(architecture)
    values = architecture.ffn[1].values.detach()
    values = passed_on(architecture, 1, values) if basis == "folded" else values
    assert lens.top_written(values, basis).tolist() == rows["token_id"].tolist()
    assert allclose(lens.written(values, basis).max(dim=-1).values, rows["score"].to_numpy(), 1e-5)


def test_chunks_change_nothing(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large vocabulary is read in parts."""
    lens, stream = Lens(tiny), torch.randn(23, tiny.d_model, generator=torch.Generator().manual_seed(0))
    of = torch.arange(23)
    whole = lens.top(stream), lens.top_and_probability(stream, of)
    monkeypatch.setattr(module, "LOGITS", 4 * tiny.d_vocab)
    assert len(lens.chunks(23)) == 6
    assert torch.equal(lens.top(stream), whole[0])
    assert allclose(lens.top_and_probability(stream, of)[1], whole[1][1])


def test_a_silent_layer_is_an_error(tiny: fm.Model) -> None:
    reader = Positions(tiny)
    reader.after[0] = torch.nn.Identity()
    with pytest.raises(HookError, match="did not show"):
        reader.layers(torch.tensor([[0, 5]]), torch.tensor([1]))
