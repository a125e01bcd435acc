"""The blocks of an attribution's sheet, read back from what they print."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ffnmem as fm

from .editing.edits import made
from .helpers import allclose, build_gemma2, printed

PROMPT = "The Eiffel Tower is in the city of"


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
    assert CAPPED in " ".join(printed(fm.report(capture, " Paris").sheet()))
