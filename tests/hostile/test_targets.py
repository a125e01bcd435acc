"""Targets and foils of all kinds, through every function and command that takes them."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.cli import run_captured
from ffnmem.cli.options import ModelChoice

from ..helpers import PROMPT, WHOLE_WORDS
from .judging import LONGEST, answered, hostile
from .material import tiny

WORDS = st.sampled_from([*WHOLE_WORDS, *(word.strip() for word in WHOLE_WORDS), "paris", " ", "", "\n", "\x00", "id:7"])
TEXTS = st.one_of(WORDS, st.text(max_size=8), st.text(st.characters(codec=None), max_size=4), st.text(min_size=900))
WRONG = st.one_of(st.none(), st.integers(-400, 400), st.booleans(), st.floats(), st.binary(max_size=3), st.lists(TEXTS))
PROMPTS = st.sampled_from([PROMPT, PROMPT + " ", "The", "The \n", "Paris  "])


@cache
def captured(prompt: str) -> fm.prompts.Capture:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fm.capture(tiny(), prompt)


@cache
def fact() -> fm.Fact:
    return fm.Fact("Eiffel Tower", "city", "The {} is in the city of", "Paris", "Rome")


@hostile(
    examples=15, prompt=PROMPTS, target=st.one_of(TEXTS, WRONG), foil=st.one_of(st.none(), TEXTS), first=st.booleans()
)
def test_targets_of_attribution(prompt: str, target: Any, foil: str | None, first: bool) -> None:
    capture = captured(prompt)
    found = answered("attribute", lambda: fm.attribute(capture, target, foil, first_token=first))
    if isinstance(found, fm.prompts.Attribution) and isinstance(target, str):
        # Whatever was read, it is what was written or that after a space.
        whole = found.target
        assert first or whole in (target, f" {target}") or "�" in whole
        paths = answered("paths", lambda: fm.attribute_paths(capture, target, foil, first_token=first))
        assert paths.answer == found.answer
        assert paths.foil == found.foil


@hostile(examples=12, prompt=PROMPTS, target=TEXTS, foil=st.one_of(st.none(), TEXTS), first=st.booleans())
def test_targets_of_ablation(prompt: str, target: str, foil: str | None, first: bool) -> None:
    capture = captured(prompt)
    answered("ablate", lambda: fm.ablate(capture, target, foil, neurons=[(0, 0)], first_token=first))
    answered("knowledge", lambda: fm.interventions.knowledge_neurons(capture, target, steps=2, first_token=first))


@hostile(examples=10, target=st.one_of(TEXTS, WRONG))
def test_targets_of_edits(target: Any) -> None:
    found = answered("ft_l", lambda: fm.editing.ft_l(tiny(), fact(), target, layer=0, steps=1, force=True))
    if isinstance(found, fm.Edit):
        answered("diff", lambda: found.diff(tiny(), fact(), target=target, foil=target))
    answered(
        "trace", lambda: fm.trace_fact(tiny(), fact().text, "Eiffel Tower", target=target, samples=1, kinds=["ffn"])
    )


@hostile(
    examples=12,
    command=st.sampled_from(["attribute", "paths", "ablate", "edit", "trace"]),
    target=TEXTS,
    foil=st.one_of(st.none(), TEXTS),
)
def test_targets_of_commands(command: str, target: str, foil: str | None) -> None:
    """Exit status 0 or 2 and one line for each thing said, whatever the target is."""
    arguments = [command, PROMPT, "--target", target, "--json"]
    if command in ("edit", "trace"):
        arguments += ["--subject", "Eiffel Tower"]
        arguments += (
            ["--editor", "ft_l", "--layer", "0", "--set", "steps=1", "--unreached"]
            if command == "edit"
            else ["--samples", "1"]
        )
    elif foil is not None:
        arguments += ["--foil", foil]
    load, ModelChoice.load = ModelChoice.load, lambda choice: tiny()
    try:
        status, out, err = run_captured(arguments)
    finally:
        ModelChoice.load = load  # type: ignore[method-assign]
    assert status in (0, 2), (status, arguments)
    for line in err.splitlines():
        assert line.startswith("ffnmem: "), line
        assert len(line) <= LONGEST
    assert not status or not out
