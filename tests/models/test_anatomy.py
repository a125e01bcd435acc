"""An anatomy as a table, as data and as words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.models import Anatomy, anatomy

from ..helpers import allclose


@pytest.fixture(scope="module")
def llama() -> Anatomy:
    return anatomy({"model_type": "llama"})


def test_memories(llama: Anatomy) -> None:
    """Memories would not account for the FFN: neurons times vectors is all of its weights but biases."""
    assert (llama.vectors, llama.neurons) == (("key", "gate", "value"), 32 * 11008)
    found = llama.to_dict()
    assert found["memory"]["neurons"] * found["memory"]["weights_per_neuron"] == 32 * llama.total(
        "layer_parameters", "FFN"
    )
    assert sum(m["numbers"] for m in found["matrices"]) == 4 * 4096**2 + 3 * 4096 * 11008
    classic = anatomy({"model_type": "gpt2"})
    assert classic.vectors == ("key", "value")
    assert 12 * classic.total("layer_parameters", "FFN") == classic.neurons * (2 * 768 + 1) + 12 * 768


@pytest.mark.parametrize(
    ("d_mlp", "gated", "width", "words"),
    [
        (3072, False, 2048, "2,048 neurons"),
        (1024, False, 768, "683 neurons; with 768, a multiple of 256, it has +12.5%"),
        (11008, True, 16384, "16,512 neurons; with 16,384, a multiple of 256, this one has +0.8%"),
        (64, True, 96, "96 neurons"),
        (1, True, 1, "with 1, this one has +50.0%"),
    ],
)
def test_parity_is_never_in_favour_of_the_gated(
    llama: Anatomy, d_mlp: int, gated: bool, width: int, words: str
) -> None:
    """A comparison of both kinds would give the gated one less, or name a width that is not what it says."""
    found = replace(llama, d_mlp=d_mlp, gated=gated)
    assert (found.parity.d_mlp if gated else found.parity.h) == width
    assert found.parity.difference >= 0
    assert found.parity_words().endswith(words)


def test_data_is_plain(llama: Anatomy, tiny: fm.Model) -> None:
    """JSON would refuse it, or a number be lost on the way."""
    for found in (llama, anatomy(tiny)):
        read = json.loads(json.dumps(found.to_dict()))
        assert read["parameters"] == sum(row["parameters"] for row in read["components"]) == found.parameters
    assert read["provenance"]["fingerprint"] == tiny.fingerprint
    assert (read["counted"], read["tied"]) == ("weights", True)
    assert llama.to_dict()["provenance"] == {"model": "llama", "ffnmem": fm.__version__}


def test_displays(llama: Anatomy) -> None:
    assert repr(llama).count("\n") == 0
    assert "6,738,415,616" in repr(llama)
    page = replace(llama, name="<b>x", activation="<i>")._repr_html_()
    assert "<b>x" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;x" in page
    assert "352,256" in page


def test_sheet(llama: Anatomy) -> None:
    """A component's numbers in the place of another's, or a trait left out."""
    components, in_layers, facts, origin = llama.sheet().blocks
    frame = llama.to_frame()
    assert [list(row) for row in components.rows[:-1]] == frame[
        ["component", "parameters", "share", "flops", "flops_share"]
    ].to_numpy().tolist()
    assert components.rows[-1] == ("all", llama.parameters, 1.0, llama.flops, 1.0)
    assert in_layers.folded
    assert in_layers.rows[3][1] == frame.loc[3, "layer_parameters"]
    assert facts.rows == llama.traits()
    assert [llama.traits()[name] for name in ("biases", "counted")] == [
        "none",
        "in a model built from its config, without weights",
    ]
    assert allclose(frame.set_index("component").loc["FFN", "share"], llama.ffn_share, 1e-12)
    assert origin.line[0].text.endswith(fm.__version__)
