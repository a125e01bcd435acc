"""What is said of edits in words: their settings on a line, and that one is not reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import quoted
from ..core.number_text import format_probability, format_value
from ..facts.fact import Fact

FEW = 8  # values of a setting that are shown one by one
COUNTED = 10_000  # from here on, a whole number of a setting is shown with thousands


def missed_words(fact: Fact, target: str, after: float, says: str | None = None) -> str:
    """What is to be said of a fact whose edit does not make the model say its target.

    Args:
        after: the target's probability with the edit. says: the likeliest next token, where it was looked for.
    """
    begun = says is not None and f" {target}".startswith(says) and says.strip() != target
    likeliest = "" if says is None else f", and the likeliest next token is {quoted(says)}"
    likeliest = f" a token, which it begins with {quoted(str(says))} and then leaves" if begun else likeliest
    return (
        f"the edit of {quoted(fact.text)} is not reached: with it {quoted(f' {target}')} has a probability of "
        f"{format_probability(after)}{likeliest}"
    )


def settings_in_words(settings: Mapping[str, Any], between: str = " · ") -> str:
    """Settings on one line: ``layer 0 · steps 120 · contexts: 21 texts``; what is None or empty is left out."""
    return between.join(
        f"{name.replace('_', ' ')}{in_words(value)}" for name, value in settings.items() if value not in (None, "", [])
    )


def in_words(value: Any) -> str:
    """A setting's value behind its name; of many texts, how many they are."""
    if isinstance(value, Mapping):
        return f" ({settings_in_words(value, ', ')})"
    if isinstance(value, bool):
        return " yes" if value else " no"
    if isinstance(value, list):
        if len(value) > FEW:
            return f": {len(value)} {'texts' if isinstance(value[0], str) else 'values'}"
        return f" {', '.join(quoted(one) if isinstance(one, str) else format_value(one) for one in value)}"
    small = isinstance(value, int) and abs(value) < COUNTED
    return f" {value if small else format_value(value)}"
