"""The settings of a trace, checked: what is restored, how wide the windows are, how much noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from ..core.defaults import TRACE_SAMPLES
from ..core.errors import InputError, check_choice, check_number, quoted
from ..core.types import TRACE_KINDS, TRACE_PARTS

KINDS, PARTS, SAMPLES = TRACE_KINDS, TRACE_PARTS, TRACE_SAMPLES
SEVERED = ("severed_ffn", "severed_attention")
FACTOR = 3.0  # noise, in standard deviations of the subjects' embeddings
WIDEST, OF_LAYERS = 10, 48  # the paper's window in GPT-2 XL
NARROWEST = 3
WIDEST_KNOCKOUT = 9  # Geva et al. 2023: 9 of GPT-2 XL's 48 layers, 5 of GPT-J's 28
GIVEN, OWN = "given", f"{FACTOR:g} sd of this subject's embeddings"


def noise_of_all(facts: int) -> str:
    """What the noise of many facts is taken from."""
    return f"{FACTOR:g} sd of the embeddings of {facts} facts' subjects"


def check_kinds(kinds: Sequence[str], severed: Sequence[str]) -> tuple[str, ...]:
    """The kinds to trace, each once, the severed ones by their names; raises InputError."""
    chosen = several("kinds", kinds, (*KINDS, *SEVERED))
    chosen += [f"severed_{part}" for part in several("severed", severed, PARTS)]
    return some_of(chosen, (*KINDS, *SEVERED), "trace")


def check_parts(kinds: Sequence[str]) -> tuple[str, ...]:
    """The parts to silence, each once; raises InputError."""
    return some_of(several("kinds", kinds, PARTS), PARTS, "silence")


def several(name: str, given: Sequence[str], possible: Sequence[str]) -> list[str]:
    """Names that are among the possible ones; InputError for another one, or for a text in place of several."""
    if isinstance(given, str):
        raise InputError(f"{name} must be several names, such as ({quoted(given)},), not the text {quoted(given)}")
    return [check_choice(name.removesuffix("s"), one, possible) for one in given]


def some_of(chosen: Sequence[str], possible: Sequence[str], what: str) -> tuple[str, ...]:
    """Each once; InputError where there is none."""
    if not chosen:
        raise InputError(f"no kinds to {what}: choose among {', '.join(possible)}")
    return tuple(dict.fromkeys(chosen))


def check_window(window: int | None, n_layers: int, widest: int = WIDEST) -> int:
    """The window's width; by default the paper's share of the layers, which is 10 of 48, or another ``widest`` one.

    In shallow models that is less than a layer, whose outputs alone restore little: at least three layers, unless that
    is more than half of all.
    """
    if window is not None:
        return window
    share = int(n_layers * widest / OF_LAYERS + 0.5)
    return max(1, min(widest, max(NARROWEST, share), n_layers // 2))


def check_noise(noise: float) -> float:
    """The noise's standard deviation; raises InputError if it is negative or no finite number."""
    number = check_number("noise", noise)
    if number < 0 or not isfinite(number):
        raise InputError(f"noise must be a standard deviation of at least 0, not {quoted(noise)}")
    return number
