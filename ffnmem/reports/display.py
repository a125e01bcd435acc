"""What notebooks show of results: compact HTML, legible on light and dark pages, with styles that stay inside."""

from __future__ import annotations

from ..captures import Capture
from ..paths import PathAttribution
from ..show.rendering import provenance_line
from .answer import carried
from .tables import Chip, firings, prompt_chips
from .templating import display

PROMPTS = 10
TOKENS = 64  # of each prompt
NEURONS = 10
POSITIONS = 20


def capture_html(capture: Capture) -> str:
    """A capture: the prompts' tokens (the first ones of many or long prompts), layers, shapes and provenance."""
    batch, pos = capture.tokens.shape
    first = capture.layers[0]
    shown = range(min(batch, PROMPTS))
    return display(
        "capture.html",
        name=capture.model.name,
        prompts=[prompt_chips(capture, prompt, TOKENS) for prompt in shown],
        hidden_tokens=[max(capture.length(prompt) - TOKENS, 0) for prompt in shown],
        batch=batch,
        layers=capture.layers,
        shapes=[
            ("tokens", (batch, pos)),
            ("pre, coefficients", tuple(capture.coefficients[first].shape)),
            ("ffn_in, ffn_out", tuple(capture.ffn_out[first].shape)),
            *([] if capture.logits is None else [("logits", tuple(capture.logits.shape))]),
        ],
        provenance=provenance_line(capture.provenance.as_dict()),
    )


def paths_html(paths: PathAttribution) -> str:
    """A path attribution: what memories of all positions add, and the largest single firings."""
    prompt = [Chip(token) for token in paths.tokens]
    if paths.starts_with_bos:
        prompt[0] = Chip("BOS", "bos", paths.tokens[0])
    return display(
        "paths.html",
        target=paths.target,
        foil=paths.foil,
        prompt=prompt,
        carried=carried(paths),
        firings=firings(paths, prompt, NEURONS),
        provenance=provenance_line(paths.provenance.as_dict()),
    )
