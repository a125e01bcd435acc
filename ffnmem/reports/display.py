"""What notebooks show of results: compact HTML, legible on light and dark pages, with styles that stay inside."""

from __future__ import annotations

from ..attribution import Attribution
from ..captures import Capture
from ..paths import PathAttribution
from ..scanning.neuron import Neuron
from ..scanning.store import Store
from .answer import answer, carried
from .cards import card
from .framing import display
from .rendering import provenance_line
from .summary import QUANTILES, RATES, facts, layer_summary
from .tables import Chip, firings, ledger, memories, prompt_chips

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


def attribution_html(attribution: Attribution) -> str:
    """An attribution: a sentence, the largest neurons, the components and the error; or a row for each position."""
    provenance = provenance_line(attribution.provenance.as_dict())
    if len(attribution.positions) > 1:
        return display(
            "attributions.html",
            rows=position_rows(attribution),
            foil=attribution.foil,
            n=len(attribution.positions),
            error=attribution.error,
            provenance=provenance,
        )
    return display(
        "attribution.html",
        answer=answer(attribution, NEURONS),
        read_at=attribution.tokens[attribution.position],
        position=attribution.position,
        memories=memories(attribution, NEURONS),
        ledger=ledger(attribution),
        provenance=provenance,
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


def neuron_html(neuron: Neuron) -> str:
    """A neuron's card."""
    return display("neuron.html", "card", card=card(neuron), provenance=provenance_line(neuron.store.provenance))


def store_html(store: Store) -> str:
    """A store: what was scanned, and dead neurons and firing rates by layer."""
    return display(
        "store.html",
        "card",
        store=store,
        facts=facts(store),
        quantiles=["median" if quantile == 0.5 else f"{quantile:.0%}" for quantile in QUANTILES],
        layers=[(row, [row[name] for name in RATES]) for row in layer_summary(store).to_dict("records")],
        problems=store.corpus.problems,
        provenance=provenance_line(store.provenance),
    )


def position_rows(attribution: Attribution) -> list[tuple[int, Chip, Chip, float, str]]:
    """Position, its token, the target there, the target's logit and the largest neuron, for the first positions."""
    largest = attribution.top(1).itertuples()
    rows = zip(attribution.positions, attribution.target_tokens, attribution.logits.tolist(), largest, strict=True)
    return [
        (position, Chip(attribution.tokens[position]), Chip(target), logit, f"{row.layer}.{row.neuron}")
        for position, target, logit, row in list(rows)[:POSITIONS]
    ]
