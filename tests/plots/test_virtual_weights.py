"""The picture of virtual weights: a bar a connection, as the table has them."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError

from ..helpers import allclose, build_gpt2, draw_whole, refuses


@pytest.mark.parametrize("direction", ["incoming", None])
def test_a_bar_a_connection(tiny: fm.Model, direction: str | None) -> None:
    found = fm.virtual_weights(tiny, "1.5", k=7)
    ax = fm.plots.virtual_weights(found, direction)
    assert allclose([bar.get_width() for bar in ax.patches], found.incoming["z"], 1e-12)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0].startswith(f"{found.incoming['layer'][0]}.{found.incoming['neuron'][0]}")
    draw_whole(ax)


def test_what_cannot_be_drawn(tiny: fm.Model) -> None:
    with refuses(InputError, ValueError, "outgoing", "'incoming'"):
        fm.virtual_weights(tiny, "1.5").plot("outgoing")
    with refuses(InputError, ValueError, "no connections"):
        fm.virtual_weights(fm.load(build_gpt2(n_layer=1), tokenizer=tiny.tokenizer), "0.5").plot()
