"""The blocks of an attribution's sheet, read back from what they print."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

import ffnmem as fm
from ffnmem.core.sheets import as_block
from ffnmem.vocabulary.projections import promoted_tokens, written_tokens
from ffnmem.vocabulary.vectors import side_tokens, side_vectors

from .editing.edits import made
from .helpers import allclose, build_gemma2, printed

PROMPT = "The Eiffel Tower is in the city of"


@pytest.fixture(scope="module")
def capture(tiny: fm.Model) -> fm.prompts.Capture:
    return fm.capture(tiny, PROMPT)


@pytest.fixture(scope="module")
def found(capture: fm.prompts.Capture) -> fm.prompts.Attribution:
    return fm.attribute(capture, " Paris", " Rome")


def test_ledger_holds_every_component(found: fm.prompts.Attribution) -> None:
    """A component left out, or counted twice, would leave a sum that the reader cannot check; the last two columns are
    a layer's own sum, and the sum of all rows so far."""
    lines = printed(found.ledger())
    number = r"[+-]?\d+\.\d+(?:e-\d+)?"
    cells = {re.split(r"\s{2,}", line)[0]: [float(x) for x in re.findall(number, line)] for line in lines}
    total, so_far = 0.0, 0.0
    for part in found.components.itertuples():
        row = part.component if part.layer is None or str(part.layer) == "<NA>" else f"layer {part.layer}"
        assert any(abs(cell - part.logit) < 1e-3 for cell in cells[row]), (row, part.component)
        total += part.logit
    for line in (line for line in lines if line.startswith(("embedding", "position", "layer", "final"))):
        *_, together, sum_so_far = cells[re.split(r"\s{2,}", line)[0]]
        so_far += together
        assert sum_so_far == pytest.approx(so_far, abs=5e-3)
    assert cells["final bias"][-1] == pytest.approx(found.logit, abs=1e-3)
    assert cells["sum"] == [pytest.approx(total, abs=1e-3)]
    assert cells["model's logit"] == [pytest.approx(found.logit, abs=1e-3)]
    assert cells["error"] == [pytest.approx(found.error, rel=0.1)]


def test_neurons_and_what_they_promote(tiny: fm.Model, found: fm.prompts.Attribution) -> None:
    """The tokens beside a neuron are its own value's, best first."""
    top = found.top(4)
    written = {at: (shown, [], False) for at, shown in promoted_tokens(tiny, top).items()}
    lines = printed(found.neuron_table(top, written))
    for row, line in zip(top.itertuples(), lines[2:6], strict=True):
        best = fm.project(tiny, row.layer, row.neuron, k=1, side="value")["token"].iloc[0]
        shown = line.split("%", 1)[1].split()
        assert line.startswith(f"{row.layer}.{row.neuron} ")
        assert shown[0] == best.replace(" ", "·") or not best.isprintable() or best == " "
        assert f"{row.logit:+.2f}"[:4] in line


def test_a_negative_coefficient_promotes_what_its_value_suppresses(
    tiny: fm.Model, found: fm.prompts.Attribution
) -> None:
    """The tokens beside it would else be the ones that it wrote against."""
    some = found.neurons[found.neurons["coefficient"] < 0].head(3)
    tokens = promoted_tokens(tiny, some, fired="coefficient")
    for row in some.itertuples():
        own = tokens[row.layer, row.neuron]
        frame = fm.project(tiny, row.layer, row.neuron, k=len(own), side="value")
        assert own == frame.loc[frame["sign"] == "suppressed", "token"].tolist()
        assert promoted_tokens(tiny, some)[row.layer, row.neuron] != own
    written = {at: (shown, [], False) for at, shown in tokens.items()}
    assert "promotes" in " ".join(printed(found.neuron_table(some, written)))
    caption = "a negative coefficient promotes what the value suppresses"
    assert caption in found.neuron_table(some).caption
    assert caption not in found.neuron_table(found.neurons[found.neurons["coefficient"] > 0].head(3)).caption


def test_a_neuron_that_says_more_by_what_it_suppresses_is_shown_with_that(
    tiny: fm.Model, found: fm.prompts.Attribution
) -> None:
    """A neuron that writes against the target was shown with the tokens that it promotes, which say nothing of it."""
    top, answer = found.neurons.head(40), [found.target_ids[0], found.foil_id]
    written = written_tokens(tiny, top, answer, 3)
    against = 0
    for row in top.itertuples():
        promoted, suppressed, says_more = written[row.layer, row.neuron]
        scores = side_vectors(tiny, row.layer, [row.neuron], "value", "folded")[0] @ side_tokens(tiny, "value").T
        scores = scores * row.coefficient
        order = scores.argsort(descending=True)
        assert promoted == tiny.token_strings(order[:3])
        assert suppressed == tiny.token_strings(order.flip(0)[:3])
        stands = ((scores - scores.mean()) / scores.std(correction=0))[answer]
        assert says_more == bool(stands[stands.abs().argmax()] <= -2)
        against += says_more
    assert 0 < against < len(top)
    some = top[[written[at][2] for at in zip(top["layer"], top["neuron"], strict=True)]].head(1)
    table = found.neuron_table(some, written)
    _, suppressed, _ = next(iter(written[at] for at in zip(some["layer"], some["neuron"], strict=True)))
    assert [piece[0].text for piece in table.rows[0][-1].pieces] == ["suppresses", *suppressed]
    assert "where these say more about the answer" in table.caption
    both = found.neuron_table(some, written, full=True)
    assert [column.name for column in both.columns[-2:]] == ["promotes", "suppresses"]
    assert [piece[0].text for piece in both.rows[0][-1].pieces] == suppressed


def test_heading(capture: fm.prompts.Capture, found: fm.prompts.Attribution) -> None:
    """The foil's own rank stands beside the target's, and the logit is their difference."""
    text = "\n".join(printed(as_block(found.heading(found.top(3), [], capture))))
    logits = capture.logits_at(0, capture.position(-1))
    for role, token in (("target", " Paris"), ("foil", " Rome")):
        logit = logits[capture.model.token_id(token)]
        rank = int((logits > logit).sum()) + 1
        assert re.search(rf"^{role} +·{token.strip()} +rank {rank}, logit {float(logit):.3f}", text, re.MULTILINE)
    assert f"{found.logit:.3f}, the target’s minus the foil’s" in text
    without = fm.attribute(capture, " Paris")
    assert "foil" not in "\n".join(printed(as_block(without.heading(without.top(3), [], capture))))


def test_what_was_written(found: fm.prompts.Attribution) -> None:
    """Its numbers are sums of the two tables."""
    parts, top = found.components, found.top(3)
    ffn = parts.loc[parts["component"] == "ffn", "logit"].sum()
    text = found.written(top, [1, 0])
    assert f"all 128 wrote {ffn:+.3f} of the logit {found.logit:.3f}" in text
    assert f"the 3 below (of layers 1, 0) {top['logit'].sum():+.3f}" in text


CAPPED = "before the soft cap of 5"


def test_a_logit_before_a_soft_cap_says_so(tokenizer: Any, tmp_path: Path) -> None:
    """It stands beside the model's own, which is another number: a reader would take one of them for wrong."""
    model = fm.load(build_gemma2(), tokenizer=tokenizer)
    capture = fm.capture(model, PROMPT)
    alone = fm.attribute(capture, " Paris")
    own = capture.predictions(k=model.d_vocab).set_index("token")["logit"][" Paris"]
    assert allclose(5 * math.tanh(alone.logit / 5), own, 1e-5)
    paths, scores = fm.attribute_paths(capture, " Paris"), fm.causal_scores(capture, " Paris")
    ablated, diff = fm.ablate(capture, " Paris", neurons=[(0, 1), (1, 2)]), made(model, (1,)).diff(model, PROMPT)
    every, circuit = fm.attribute(capture, fm.prompts.NEXT), fm.circuit(capture, ["0.1", "1.2"], " Paris")
    kept = fm.faithfulness(capture, " Paris", sizes=[4], random=1), fm.minimal_circuit(capture, " Paris")
    whole = fm.causal_scores(capture, " Paris Rome")  # a log-probability is after it
    assert CAPPED not in repr(whole) + " ".join(printed(whole.sheet()))
    for shown in (alone, every, paths, scores, ablated, circuit, diff, *kept):
        assert CAPPED in " ".join(" ".join(printed(shown.sheet())).split())
        assert shown.to_dict()["provenance"]["soft_cap"] == 5
    assert CAPPED in fm.plots.neurons(paths).get_xlabel()
    assert CAPPED in fm.pages.report(model, PROMPT, target=" Paris", out=tmp_path / "report.html").read_text()
