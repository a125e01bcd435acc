"""What is said of an edit that is not reached."""

from __future__ import annotations

from ..core.errors import quoted
from ..core.number_text import format_probability
from ..facts.fact import Fact


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
