"""Targets as users write them: which token a text without its leading space means after a prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, SupportsIndex

from jaxtyping import Float
from torch import Tensor

from .errors import InputError, check_text, quoted, warn
from .facts.asking import target_ids
from .models import Model

if TYPE_CHECKING:
    from .captures import Capture

ENDING = 40  # of a prompt
LAST = 4  # words


def spelled(
    model: Model,
    text: str,
    logits: Callable[[], Float[Tensor, " vocab"]],
    *,
    before: str = "",
    one: bool = True,
    what: str = "target",
) -> str:
    """How a target is meant: as it is written, or after a space.

    The one rule for all that take targets: what begins with a space, or follows one, is taken as written. Of the two
    readings of any other text, with a space in front and without, the one that the model finds likelier after the
    prompt, by its first token; if only one of them is a single token where one is needed, that one. A space that was
    added is warned of.

    Args:
        model: whose tokenizer and vocabulary count.
        text: the target.
        logits: gives those after the prompt; asked only where there is a choice.
        before: what stands before the target.
        one: whether a single token is needed.
        what: it is called in messages.

    Raises: InputError: no reading is a single token where one is needed, or none is likelier.
    """
    if not text or text[0].isspace() or before[-1:].isspace():
        return text
    readings = {reading: model.ids_of(reading) for reading in (text, f" {text}")}
    fitting = [reading for reading, ids in readings.items() if fits(model, reading, ids, one)]
    if not fitting:
        raise InputError(nothing_fits(model, readings, what))
    if len(fitting) == 1:
        (chosen,) = fitting
        why = f"which is a single token of {model.name}"
    elif readings[text][0] == readings[f" {text}"][0]:
        return text  # they begin alike: with this tokenizer, or where only first tokens count, there is no choice
    else:
        found = logits()
        (plain, id), (spaced, other) = ((reading, ids[0]) for reading, ids in readings.items())
        if not bool((found[id] > found[other]) | (found[other] > found[id])):  # level, or not a number
            raise InputError(
                f"{what} {quoted(text)} may be meant with a space before it or without, and {model.name} finds both "
                f"equally likely here: write {quoted(spaced)}, or for {quoted(plain)} give its token's id, {id}"
            )
        chosen = plain if bool(found[id] > found[other]) else spaced
        why = f"which {model.name} finds likelier here"
        if one:
            why += f" (the one without is token {id}, by its id)"
    if chosen != text:
        warn(f"{what} {quoted(text)} is read with a space before it, as {quoted(chosen)}, {why}")
    return chosen


def token_after(
    capture: Capture, token: str | SupportsIndex, row: int, position: int, first: bool = False, what: str = "target"
) -> int:
    """The id of a target after a position of a captured prompt, by the rule of :func:`spelled`.

    Raises: InputError: not one token (and not ``first``), or no reading of it is likelier. OutOfRangeError: no such id.
    """
    model = capture.model
    if isinstance(token, str):
        before = model.token_strings(capture.tokens[row, [position]])[0]
        token = spelled(model, token, lambda: capture.logits_at(row, position), before=before, one=not first, what=what)
    return model.token_id(token, first)


def word_ids(
    model: Model, text: str, logits: Callable[[], Float[Tensor, " vocab"]], before: str, what: str = "target"
) -> tuple[int, ...]:
    """The tokens of a target that may have several, by the rule of :func:`spelled`; spaces at its ends count as one.

    Raises: InputError: an empty target, a token that the model does not have, or no reading that is likelier.
    """
    meant = spelled(model, check_text(what, text).rstrip(), logits, before=before, one=False, what=what)
    if not meant.strip() or meant[0].isspace():
        return target_ids(model, meant)
    ids = model.ids_of(meant)
    if not fits(model, meant, ids, one=False):
        raise InputError(nothing_fits(model, {meant: ids}, what))
    return tuple(ids)


def fits(model: Model, text: str, ids: list[int], one: bool) -> bool:
    """Whether a reading is known to the model, and a single token where one is needed."""
    known = bool(ids) and (model.tokenizer.unk_token_id not in ids or text == model.tokenizer.unk_token)
    return known and (not one or len(ids) == 1)


def nothing_fits(model: Model, readings: dict[str, list[int]], what: str) -> str:
    """What is wrong with a target of which neither reading can be used."""
    if any(model.tokenizer.unk_token_id in ids for ids in readings.values()):
        return f"{what} {quoted(next(iter(readings)))} is no token of {model.name}"
    shown = " nor ".join(
        f"{quoted(text)} ({len(ids)} tokens: {model.token_line(ids)})" for text, ids in readings.items()
    )
    return (
        f"neither {what} {shown} is one token of {model.name}: give one token, or ask for its first one "
        "(first_token=True, --first-token)"
    )


def warn_of_trailing_space(model: Model, *prompts: str) -> None:
    """Warn, once for all of them, of prompts whose last space is a token of its own, where it would else be part of
    the word that follows."""
    found = [prompt for prompt in prompts if ends_in_a_token(model, prompt)]
    if not found:
        return
    text = found[0].rstrip(" ")
    end = text if len(text) <= ENDING else f"…{text[-ENDING:]}"
    more = f" (and {len(found) - 1:,} more prompts)" if len(found) > 1 else ""
    warn(
        f"the prompt ends in a space, which is a token of its own to {model.name}, while most words bring theirs: "
        f"what is said next is not what follows {end!r}{more}; leave the space out"
    )


def ends_in_a_token(model: Model, prompt: str) -> bool:
    """Whether a prompt's last space would go with the word that follows, were there one.

    It is tried out: the prompt is continued by its own last words, and by "the".
    """
    words = prompt.split()
    if not prompt.endswith(" ") or not words:
        return False
    alone = model.ids_of(prompt)
    return any(model.ids_of(f"{prompt}{word}")[: len(alone)] != alone for word in (*words[-LAST:], "the"))
