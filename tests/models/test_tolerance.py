"""Which sums are warned of: those that miss by more than rounding explains. Rounding alone: test_every_dtype_works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

import ffnmem as fm

from ..helpers import PROMPT, build
from .table import DECODERS


class Int8Linear(nn.Linear):
    """Its weight is what it was, and its forward rounds it to int8."""

    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.abs().amax(1, keepdim=True) / 127
        return nn.functional.linear(x, (self.weight / step).round() * step, self.bias)


def add_to_layer(model: fm.Model) -> None:
    model.layout.blocks[0].whole.register_forward_hook(lambda _module, _args, out: out + 0.1)


def quantise_as_it_runs(model: fm.Model) -> None:
    inside: Any = model.layout.blocks[1].project_out
    inside.__class__ = Int8Linear


SUMS = ["attribute", "attribute_paths", "circuit"]
CHANGES = [
    (add_to_layer, "float32", SUMS),
    (add_to_layer, "float64", SUMS),
    (quantise_as_it_runs, "float32", ["decompose of layer 1", *SUMS]),
]


@pytest.mark.parametrize(("change", "dtype", "named"), CHANGES)
def test_a_sum_that_is_not_the_models_is_warned_of_once(
    change: Callable[[fm.Model], None], dtype: str, named: list[str], tokenizer: Any
) -> None:
    """Its shares would be believed, and only who reads the error would know."""
    model = fm.load(build("Llama"), tokenizer=tokenizer, dtype=dtype)
    change(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for prompt in (PROMPT, "The Eiffel Tower"):
            capture = fm.capture(model, prompt)
            for layer in range(model.n_layers):
                fm.decompose(capture, layer)
            fm.attribute(capture)
            fm.attribute_paths(capture)
            fm.circuit(capture, fm.causal_scores(capture, exact=0).top(5))
    told = [str(one.message) for one in caught]
    assert {one.category for one in caught} == {fm.FfnmemWarning}
    assert [text.partition(":")[0] for text in told] == named
    assert all(
        f"rounding in {dtype} explains at most" in text and "a hook that changes an output" in text for text in told
    )


@pytest.mark.parametrize("name", ["GPT-J", "MPT"])
def test_a_second_pass_may_round_differently(name: str, tokenizer: Any) -> None:
    """Attention of a row of a batch, or up to an earlier answer, is run once more, with a softmax in float32."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    batch, one = fm.capture(model, ["Paris is", PROMPT, "so it is said"]), fm.capture(model, PROMPT)
    found = [fm.attribute_paths(batch, prompt=row) for row in range(3)] + [fm.attribute_paths(one, position=3)]
    errors = [paths.error for paths in found] + [fm.circuit(batch, found[1].top(5), prompt=1).error]
    assert 1e-11 < max(errors) < 1e-6  # which would be warned of, and so fail here
