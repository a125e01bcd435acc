"""Pictures of interventions."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex

import ffnmem as fm
from ffnmem.plots.attribution import ADDS, NAMED, TAKES

from ..helpers import PROMPT, allclose, draw_whole


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> fm.interventions.Ablation:
    ablation = fm.ablate(fm.capture(tiny, PROMPT), " Paris", top=30)
    turned = ablation.neurons["logit"].where(ablation.neurons.index % 4 > 0, -ablation.neurons["direct"])
    return replace(ablation, neurons=ablation.neurons.assign(logit=turned))  # some with opposite signs


def test_points_are_the_effects(found: fm.interventions.Ablation) -> None:
    """Direct across, total up; the colour says where attribution points the wrong way."""
    ax = fm.plots.ablation(found)
    rows = found.neurons
    against = rows["direct"] * rows["logit"] < 0
    drawn = {to_hex(c.get_facecolor()[0]).upper(): np.asarray(c.get_offsets()) for c in ax.collections}  # type: ignore[index]
    for colour, chosen in ((ADDS, rows[~against]), (TAKES, rows[against])):
        assert len(chosen), "both kinds are in this example"
        assert allclose(drawn[colour], chosen[["direct", "logit"]], 1e-12)
    assert ax.get_xlim() == ax.get_ylim()
    assert "30 neurons behind ' Paris'" in ax.get_title(loc="left")
    assert f"Spearman {found.spearman:.2f}" in ax.get_title(loc="left")
    shown = [text.get_text() for text in ax.texts]
    assert 0 < len(shown) <= 2 * NAMED
    furthest = rows[against].assign(off=(rows["logit"] - rows["direct"]).abs()).nlargest(1, "off").iloc[0]
    assert shown[0] == f"{furthest['layer']:.0f}.{furthest['neuron']:.0f}"  # what attribution gets wrong has its name
    draw_whole(ax)


def test_names_do_not_cover_each_other(found: fm.interventions.Ablation) -> None:
    same = replace(found, neurons=found.neurons.head(6).assign(direct=0.1, logit=0.2))
    ax = fm.plots.ablation(same)
    assert len(ax.texts) == 4  # one on each side
    assert "Spearman" not in ax.get_title(loc="left")


def test_draws_on_given_axes_and_takes_any_token(found: fm.interventions.Ablation) -> None:
    _, ax = plt.subplots()
    before = plt.get_fignums()
    assert fm.plots.ablation(replace(found, target="$x_", foil=" $"), ax) is ax
    assert plt.get_fignums() == before
    assert "'$x_' minus ' $'" in ax.get_title(loc="left")
    draw_whole(ax)
