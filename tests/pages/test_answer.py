from dataclasses import replace

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.pages.prompts import answer, carried


@pytest.fixture(scope="module")
def attribution(atlas: fm.Model) -> fm.prompts.Attribution:
    return fm.attribute(fm.capture(atlas, "The capital of France is"))


def test_the_sums_are_those_of_the_tables(attribution: fm.prompts.Attribution) -> None:
    found = answer(attribution, 20, 0.5)
    ffn = attribution.components.query("component == 'ffn'")["logit"].sum()
    assert found.ffn == pytest.approx(ffn)
    assert found.ffn == pytest.approx(attribution.neurons["logit"].sum(), abs=1e-4)
    assert found.top == pytest.approx(attribution.top(20)["logit"].sum())
    assert (found.n_top, found.n_neurons) == (20, len(attribution.neurons))
    assert found.in_percent


@pytest.mark.parametrize("logit", [-3.0, 0.0, 1e-3])
def test_no_percentage_of_a_logit_that_is_not_clearly_positive(
    attribution: fm.prompts.Attribution, logit: float
) -> None:
    assert not answer(replace(attribution, logits=torch.tensor([logit])), 20).in_percent


def test_several_positions_are_refused(atlas: fm.Model) -> None:
    with pytest.raises(InputError, match="positions"):
        answer(fm.attribute(fm.capture(atlas, "one two three"), fm.prompts.NEXT), 20)


def test_what_is_carried_adds_up(atlas: fm.Model) -> None:
    paths = fm.attribute_paths(fm.capture(atlas, "The capital of France is"))
    found = carried(paths)
    assert found.memories == pytest.approx(float(paths.map.sum()))
    assert found.memories + found.rest == pytest.approx(paths.logit, abs=1e-4)
    assert found.there == pytest.approx(float(paths.map.sum(0)[found.place]))
    assert found.there == pytest.approx(float(paths.map.sum(0)[:-1].max()))


def test_one_position_has_no_earlier_one(atlas: fm.Model) -> None:
    found = carried(fm.attribute_paths(fm.capture(atlas, "The", prepend_bos=False)))
    assert found.place is None
    assert found.there == 0.0
