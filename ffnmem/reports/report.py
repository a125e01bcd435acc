"""``report``: which memories wrote one answer, on one page that needs nothing but a browser."""

from __future__ import annotations

from pathlib import Path

from ..arguments import public
from ..attribution import Attribution
from ..captures import Capture, Prompt, capture
from ..contributions import attribute
from ..errors import InputError, check_count
from ..files import check_destination, write_whole
from ..models import Model
from ..models.turns import in_turn
from ..paths import PathAttribution, attribute_paths
from .answer import answer, carried
from .heatmap import heatmap
from .tables import BASIS, firings, ledger, memories, prompt_chips, with_tokens
from .templating import render

FIRINGS = 10  # rows of the table of single firings


@public
@in_turn
def report(
    model: Model,
    prompt: Prompt,
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    out: str | Path = "report.html",
    top: int = 20,
    tokens: int = 8,
    position: int = -1,
    first_token: bool = False,
    prepend_bos: bool | None = None,
) -> Path:
    """Write the report of one prompt as one HTML file without scripts, links to elsewhere or fonts of its own.

    Args:
        model: from :func:`ffnmem.load`.
        prompt: one text, or its token ids.
        target: the token to explain, as :func:`ffnmem.attribute` takes it; default: the model's own top token.
        foil: a second token: explain the difference of the two logits.
        out: the file to write, in a folder that exists; replaced only once the new one is complete.
        top: how many memories to list.
        tokens: how many promoted and suppressed tokens to show for each.
        position: where the answer is read off; negatives count from the prompt's end.
        first_token: take the first token of a target or foil of several tokens instead of refusing it.
        prepend_bos: put the beginning-of-sequence token in front; default ``model.prepend_bos``.

    Returns:
        The path written.

    Raises:
        FileError: ``out`` is a folder, its folder is missing, or it cannot be written.
        InputError, OutOfRangeError: as :func:`ffnmem.capture` and :func:`ffnmem.attribute`; several prompts.
    """
    path = check_destination(out)
    check_count("top", top)
    check_count("tokens", tokens)
    captured = capture(model, prompt, prepend_bos=prepend_bos)
    if captured.tokens.shape[0] != 1:
        raise InputError(f"a report is of one prompt, not {captured.tokens.shape[0]}: write one for each")
    attribution = attribute(captured, target, foil, position, first_token=first_token)
    paths = attribute_paths(captured, attribution.target_ids[0], attribution.foil_id, attribution.position)
    write_whole(path, report_html(captured, attribution, paths, top=top, tokens=tokens))
    return path


def report_html(captured: Capture, attribution: Attribution, paths: PathAttribution, *, top: int, tokens: int) -> str:
    """The page of an attribution of one position of a capture of one prompt, directly and along all paths."""
    position, target_id, foil_id = attribution.position, attribution.target_ids[0], attribution.foil_id
    roles = {target_id: "target"} if foil_id is None else {foil_id: "foil", target_id: "target"}
    probabilities = captured.logits_at(0, position).detach().double().softmax(-1)
    prompt = prompt_chips(captured)
    return render(
        "report.html",
        prompt=prompt,
        answer=answer(
            attribution,
            top,
            float(probabilities[target_id]),
            None if foil_id is None else float(probabilities[foil_id]),
        ),
        predictions=captured.ranked(position, roles),
        map=heatmap(paths.map.tolist(), [chip.token for chip in prompt[: position + 1]], position),
        carried=carried(paths),
        firings=firings(paths, prompt, min(top, FIRINGS)),
        memories=with_tokens(captured.model, memories(attribution, top), tokens, roles),
        ledger=ledger(attribution),
        position=position,
        provenance=attribution.provenance.with_settings(basis=BASIS).as_dict(),
    )
