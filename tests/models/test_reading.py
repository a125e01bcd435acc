"""What forward passes read, however the model is run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import HookError
from ffnmem.models.layer_pass import Reader

from ..helpers import hook_count, refuses


def positions_seen(model: fm.Model, run: Any) -> list[list[list[int]]]:
    """The positions of each pass while ``run`` runs, as the layers see them."""
    reader, seen = Reader(model), []

    def look(_module: torch.nn.Module, _args: Any) -> None:
        assert reader.current is not None
        seen.append(reader.current.positions.tolist())

    handle = model.ffn[0].project_out.register_forward_pre_hook(look)
    with model.turns.changing("a test") as block:
        reader.follow(block)
        run()
    handle.remove()
    assert reader.current is None
    assert reader.ran
    return seen


# TransformerLens 4.3 hands transformers 5.24 its cache under the name that it had until then.
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_positions_go_on_under_a_cache(architecture: fm.Model) -> None:
    """After the first pass each sees one token, whose position is not 0."""
    model = architecture
    tokens = torch.tensor([model.tokenize("The city of")])
    n = tokens.shape[1]
    whole = [list(range(n))]
    hf = model.hf_model
    ours = positions_seen(model, lambda: hf.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0))
    bridges = positions_seen(
        model, lambda: model.to_bridge().generate(tokens, max_new_tokens=3, stop_at_eos=False, verbose=False)
    )
    assert ours == bridges == [whole, [[n]], [[n + 1]]]
    assert positions_seen(model, lambda: model.to_bridge()(tokens)) == [whole]
    assert positions_seen(model, lambda: model.body(tokens)) == [whole]


def test_pads_on_either_side(architecture: fm.Model) -> None:
    """Positions count a row's own text, so a pad has none."""
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]])
    right = torch.tensor([[True] * 4, [True, True, False, False]])
    assert positions_seen(architecture, lambda: architecture.body(tokens, right)) == [[[0, 1, 2, 3], [0, 1, -1, -1]]]
    left, hf = right.flip(1), architecture.hf_model
    found = positions_seen(
        architecture,
        lambda: hf.generate(
            tokens.flip(1), attention_mask=left.long(), max_new_tokens=3, do_sample=False, pad_token_id=0
        ),
    )
    assert found == [[[0, 1, 2, 3], [-1, -1, 0, 1]], [[4], [2]], [[5], [3]]]


def test_lengths_are_the_prompts(tiny: fm.Model) -> None:
    """Negative positions count from the end of the prompt, not of the text so far."""
    reader = Reader(tiny)
    mask = torch.tensor([[True] * 3, [True, True, False]])
    first = reader.reading(2, 3, 0, mask, torch.device("cpu"))
    later = reader.reading(2, 1, 3, None, torch.device("cpu"))
    assert first.lengths is not None
    assert later.lengths is not None
    assert first.lengths.tolist() == later.lengths.tolist() == [3, 2]
    assert later.positions.tolist() == [[3], [2]]
    fresh = Reader(tiny).reading(1, 1, 4, None, torch.device("cpu"))
    assert fresh.lengths is None
    assert fresh.positions.tolist() == [[4]]


def test_what_cannot_be_followed(tiny: fm.Model) -> None:
    reader = Reader(tiny)
    with refuses(HookError, RuntimeError, "input_ids"):
        reader.begin(reader.decoder, (), {})
    with refuses(HookError, RuntimeError, "[1, 1, 3, 3]"):
        reader.begin(reader.decoder, (torch.ones(1, 3).long(),), {"attention_mask": torch.ones(1, 1, 3, 3)})


def test_nothing_stays(tiny: fm.Model) -> None:
    """Also when the pass fails."""
    before = hook_count(tiny.hf_model)
    reader = Reader(tiny)
    with tiny.turns.changing("a test") as block:
        reader.follow(block)
        with pytest.raises(IndexError):
            tiny.body(torch.tensor([[10**6]]))
    assert hook_count(tiny.hf_model) == before
    assert reader.current is None


def test_decoder_is_what_every_way_runs(architecture: fm.Model) -> None:
    decoder = architecture.layout.decoder
    assert decoder is not None
    assert architecture.layout.embedding in list(decoder.children())
