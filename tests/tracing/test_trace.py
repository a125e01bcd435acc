"""One fact's trace as arrays, a table, JSON and a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.sheets import Facts, Table
from ffnmem.tracing import Trace, trace_fact
from ffnmem.tracing.settings import KINDS, SEVERED
from ffnmem.tracing.traces import kind_in_words

from ..helpers import PROMPT, allclose, printed, refuses


@pytest.fixture(scope="module")
def found(tiny: fm.Model) -> Trace:
    return trace_fact(tiny, PROMPT, "Eiffel Tower", samples=3, noise=1.0, severed=("attention",))


def test_effects(found: Trace) -> None:
    """Indirect: score minus corrupted; total: clean minus corrupted."""
    assert found.corrupted == pytest.approx(found.samples.mean())
    assert found.total == pytest.approx(found.clean - found.corrupted)
    assert allclose(found.indirect("ffn"), found.scores["ffn"] - found.samples.mean(), 1e-12)
    assert allclose(found.indirect(), found.indirect("state"), 0)
    with refuses(InputError, ValueError, "mlp", "severed_attention"):
        found.indirect("mlp")


def test_one_row_a_cell(found: Trace) -> None:
    frame = found.to_frame()
    assert list(frame.columns) == ["kind", "layer", "position", "token", "score", "indirect"]
    assert len(frame) == 4 * found.n_layers * len(found.tokens)
    for row in frame.sample(20, random_state=0).itertuples():
        assert row.score == found.scores[row.kind][row.layer, row.position]
        assert row.token == found.tokens[row.position]
        assert row.indirect == found.indirect(row.kind)[row.layer, row.position]


def test_repr(found: Trace) -> None:
    assert "\n" not in repr(found)
    assert f"clean {found.clean:.3f}" in repr(found)
    assert PROMPT in repr(found)


def test_provenance_says_how(found: Trace) -> None:
    recorded = found.provenance.to_dict()
    assert recorded["window"] == 1
    assert recorded["noise"] == 1.0
    assert recorded["samples"] == 3
    assert recorded["kinds"] == "state, ffn, attention, severed_attention"


def test_displays(found: Trace) -> None:
    """Token text is untrusted; the pictures are tested with their modules."""
    bad = "<script>"
    nasty = replace(found, text=bad, answer=bad, tokens=(bad,) * len(found.tokens))
    assert bad not in nasty._repr_html_()
    assert "state" in found.plot().get_title(loc="left")


def test_a_row_a_token(found: Trace) -> None:
    sheet = found.sheet()
    heading, *maps, _ = sheet.blocks
    assert isinstance(heading, Facts)
    assert heading.rows["noise"] == f"standard deviation 1 (given), 3 samples, seed {found.seed}"
    assert [table.title for table in maps if isinstance(table, Table)] == [kind_in_words(k, 1) for k in found.kinds]
    lines = printed(found.map("state"))[2:-1]
    assert len(lines) == len(found.tokens)
    assert lines[0].startswith("<|endoftext|> ")
    assert ["* " in one for one in lines] == [i in found.subject for i in range(len(lines))]
    last = found.subject[-1]
    assert lines[last].split()[-2] == str(int(found.indirect("state")[:, last].argmax()))
    assert not lines[0].endswith("%")  # nothing is corrupted there, so nothing can come back
    assert printed(sheet)[1].count(f"{found.clean:.1%} clean") == 1


def test_brief(found: Trace) -> None:
    """The best layer of each token in place of all."""
    best = found.brief()["largest"]
    assert len(best) == len(found.kinds) * len(found.tokens)
    assert all(row["score"] == found.scores[row["kind"]][:, row["position"]].max() for row in best)


def test_kinds_in_words() -> None:
    words = [kind_in_words(kind, 3) for kind in (*KINDS, *SEVERED)]
    assert len(set(words)) == 5
    assert kind_in_words("ffn", 3) == "FFN of 3 layers"
    assert kind_in_words("attention", 1) == "attention of one layer"
