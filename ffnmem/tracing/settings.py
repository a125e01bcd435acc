"""The settings of a trace, checked: what is restored, how wide the windows are, how much noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from ..core.defaults import TRACE_SAMPLES
from ..core.errors import InputError, check_choice, check_number, quoted
from ..core.types import TRACE_KINDS

KINDS, SAMPLES = TRACE_KINDS, TRACE_SAMPLES
PARTS = ("ffn", "attention")
FACTOR = 3.0  # noise, in standard deviations of the subjects' embeddings
WIDEST, OF_LAYERS = 10, 48  # the paper's window in GPT-2 XL
NARROWEST = 3
WIDEST_KNOCKOUT = 9  # Geva et al. 2023: 9 of GPT-2 XL's 48 layers, 5 of GPT-J's 28
GIVEN, OWN = "given", f"{FACTOR:g} sd of this subject's embeddings"


def noise_of_all(facts: int) -> str:
    """What the noise of many facts is taken from."""
    return f"{FACTOR:g} sd of the embeddings of {facts} facts' subjects"


def check_kinds(kinds: Sequence[str], possible: Sequence[str], what: str) -> tuple[str, ...]:
    """The kinds to trace or silence, each once. Raises InputError for another one, or for none."""
    if isinstance(kinds, str):
        raise InputError(f"kinds must be several names, such as ({quoted(kinds)},), not the text {quoted(kinds)}")
    chosen = [check_choice("kind", kind, possible) for kind in kinds]
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
