"""One answer of a captured prompt, run again by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError, OutOfRangeError
from ffnmem.interventions.ablating import OneAnswer, ask, distance

from ..helpers import PROMPT, Pair, allclose, refuses
from .naive import IDS


def asked(
    capture: fm.prompts.Capture, target: Any = 17, foil: Any = None, position: int = -1, prompt: int = 0
) -> OneAnswer:
    return ask(capture, target, foil, position, prompt, False)


def test_scores_are_the_models(pair64: Pair) -> None:
    """Of the row and position asked, the loss of the target whether or not there is a foil."""
    capture = fm.capture(pair64.model, torch.tensor([IDS[::-1], IDS]))
    logits = pair64.logits(capture.tokens)[1, 4].double()
    question = asked(capture, 17, 99, position=4, prompt=1)
    logit, log = question.scores(question.restart.stream[-1][-1:])
    before = pair64.before_cap(logits)
    assert allclose(logit, (before[17] - before[99]).reshape(1), 1e-6)
    assert allclose(log, logits.log_softmax(-1)[17].reshape(1), 1e-6)
    assert (question.row, question.position, question.target, question.foil) == (1, 4, 17, 99)
    for layer in range(2):
        assert allclose(question.coefficients(layer), capture.coefficients[layer][1, 4], 1e-6)


def test_the_direction_is_attributions(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    question = asked(capture, 17, 99)
    for row in fm.attribute(capture, 17, 99).top(5).itertuples():
        write = row.coefficient * tiny.ffn[row.layer].values[row.neuron]
        assert float(write.detach() @ question.directions()[row.layer]) == pytest.approx(row.logit, abs=1e-5)


def test_float64_is_exact(pair64: Pair) -> None:
    """Whichever attention the bridge runs, the pass is that of the capture."""
    capture = fm.capture(pair64.model, IDS)
    assert capture.residual is not None
    assert distance(asked(capture).restart, capture.residual.final_in[0]) < 1e-10


def test_a_large_first_token_hides_nothing(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, IDS)
    assert capture.residual is not None
    restart = asked(capture).restart
    expected = restart.stream[-1].clone()
    restart.stream[-1] = expected.clone()
    restart.stream[-1][0] *= 1e4
    expected[0] *= 1e4
    restart.stream[-1][3] *= 2
    assert distance(restart, expected) == pytest.approx(1.0)


def test_what_the_layers_alone_do_not_show(tiny_hf: Any, tokenizer: Any) -> None:
    """A hook of the user's, or folded norms, would be left out of every ablation."""
    model = fm.load(tiny_hf, tokenizer=tokenizer)
    with model.bridge.hooks(fwd_hooks=[("blocks.0.mlp.hook_post", lambda value, hook: value * 0.5)]):
        halved = fm.capture(model, PROMPT)
    with refuses(InputError, ValueError, "by themselves", "hooks", "compatibility mode"):
        asked(halved)


def test_what_is_refused(tiny: fm.Model) -> None:
    capture = fm.capture(tiny, PROMPT)
    with refuses(InputError, ValueError, "every layer"):
        asked(fm.capture(tiny, PROMPT, layers=[0]))
    with refuses(InputError, ValueError, "NEXT"):
        asked(capture, fm.prompts.NEXT)
    with refuses(OutOfRangeError, IndexError, "position 99"):
        asked(capture, position=99)
    with refuses(OutOfRangeError, IndexError, "prompt 3"):
        asked(capture, prompt=3)
    with fm.intervene(tiny, {(0, 3): 1.0}):
        under = fm.capture(tiny, PROMPT)
    with refuses(InputError, ValueError, "0.3 = 1"):
        asked(under)
