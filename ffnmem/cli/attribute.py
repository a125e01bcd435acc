"""``ffnmem attribute``, ``paths``, ``contrast`` and ``decompose``: which memories wrote an answer or an output."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from .guard import note
from .options import (
    AnswerToken,
    Full,
    Page,
    PlottedOutput,
    Prompt,
    PromptChoice,
    Seed,
    Share,
    Top,
)
from .progress import show_progress

Other = Annotated[str, Parameter(help="One that differs from it and is answered otherwise.")]


def contrast(
    prompt: Prompt,
    counterfactual: Other,
    /,
    *,
    target: AnswerToken | None = None,
    foil: AnswerToken | None = None,
    goal: Share = 0.9,
    recorded: bool = False,
    html: Page | None = None,
    top: Top = 20,
    full: Full = False,
    seed: Seed = 0,
    model: PromptChoice = PromptChoice(),
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """Which few firings decide between the answers to two prompts.

    Finds the fewest firings that it can (a firing is a neuron at a position) such that, with every other one as in the
    run of COUNTERFACTUAL, most of the difference between target and foil stays, and without which it is lost. Both
    shares, and what these firings bring into the run of COUNTERFACTUAL, stand beside those of as many random ones.
    Target and foil are what the model says after each, unless they are given.

    Examples
      ffnmem contrast "The Eiffel Tower is located in the city of" \\
          "The Kremlin is located in the city of"
      ffnmem contrast "The capital of France is" "The capital of Italy is" \\
          --target " Paris" --foil " Rome" --plot capitals.png
      ffnmem contrast "The capital of France is" "The capital of Italy is" \\
          --html capitals.html

    --csv has the firings: layer, neuron, position, token, other_token, coefficient, counterfactual, difference, score,
    exact, promotes. --json has these, the proof, the search and the provenance.

    Args:
        target: What the model says after PROMPT. [default: its own top token]
        foil: What it says after COUNTERFACTUAL. [default: its own top token]
        goal: The share of the difference that the firings keep alone, and that is lost without them.
        recorded: Keep firings as they were in the run that keeps them, whatever is then below them.
        html: Also write the result as a page.
    """
    loaded = model.load()
    one, other = (model.prompt_text(loaded, text) for text in (prompt, counterfactual))
    with show_progress() as progress:
        found = fm.contrast(loaded, one, other, target, foil, goal, recorded=recorded, seed=seed, progress=progress)
    output.emit(found, top=top, full=full)
    if html is not None:
        note(f"wrote {fm.pages.contrast(found, html)}")
