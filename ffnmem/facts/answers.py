"""``Answer``: which tokens answer a prompt, resolved once and read the same way by every function."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.errors import InputError, check_text, quoted, warn
from ..core.types import checked
from ..models.answers import Question
from ..models.model import Model
from ..models.norms import at_least_float32

Logits = Callable[[], Float[Tensor, " vocab"]]
"""The logits after a prompt; asked only where there is a choice."""


@checked
@dataclass(frozen=True)
class Answer:
    """What follows a prompt: the tokens of prompt + target beyond those of the prompt. Made by :func:`read_answer`.

    Attributes:
        prompt: the prompt's ids, the beginning-of-sequence token included.
        target, foil: the ids of what follows, one or several; ``foil`` is None where there is none.
        target_text, foil_text: as they stand in the text.
        reading: how the target was read, and why.
        joins: whether a text that goes on so would end the prompt in another token: then target and foil are read as
            tokens of their own behind the prompt's.
    """

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    foil: tuple[int, ...] | None
    target_text: str
    foil_text: str | None
    reading: str
    joins: bool = False

    @property
    def parting(self) -> int:
        """The index of the first token in which target and foil differ; 0 without a foil."""
        if self.foil is None:
            return 0
        return next(i for i, (a, b) in enumerate(zip(self.target, self.foil, strict=False)) if a != b)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids to run: the prompt, and the tokens of the answer before the last one that is read."""
        return self.prompt + (self.target[:-1] if self.foil is None else self.target[: self.parting])

    @property
    def positions(self) -> range:
        """The positions that it is read after: of each token of the target; with a foil, of that where they part."""
        return range(len(self.prompt) - 1 if self.foil is None else len(self.tokens) - 1, len(self.tokens))

    @property
    def read(self) -> tuple[int, ...]:
        """The ids that are read there, one a position."""
        return self.target if self.foil is None else self.target[self.parting : self.parting + 1]

    @property
    def foil_id(self) -> int | None:
        """The foil's id where it parts from the target."""
        return None if self.foil is None else self.foil[self.parting]

    @property
    def whole(self) -> bool:
        """Whether an answer of several tokens is read, so that its measure is a sum over them."""
        return len(self.positions) > 1


# Which of its readings a target has: as it is written, or after a space.

WITHOUT_SPACES = ("BOPOMOFO", "CJK", "HIRAGANA", "KATAKANA", "KHMER", "LAO", "MYANMAR", "THAI", "TIBETAN", "YI ")
"""How Unicode's names of letters begin that are written without spaces between words."""
CLOSING = ",;:.!?%\"'"


def is_spaced(char: str) -> bool:
    """Whether a character is a letter or digit of a script that has spaces between words."""
    return char.isalnum() and not unicodedata.name(char, "").startswith(WITHOUT_SPACES)


def is_opened(before: str) -> bool:
    """Whether a text ends in a mark that the next word stands right behind: an opening bracket or quotation mark."""
    last = before[-1:]
    if last and (unicodedata.category(last) in ("Ps", "Pi") or last in "¿¡"):
        return True
    return bool(last) and last in "\"'`" and (not before[:-1] or before[-2].isspace() or is_opened(before[:-1]))


def possible_readings(before: str, text: str, word: bool) -> tuple[tuple[str, ...], str]:
    """The readings of a target that are possible after a text, and why there is one alone.

    Args:
        before: the prompt's text. text: the target's, not empty.
        word: whether it is known to be a word or some, as a fact's targets are: after a letter it follows a space.
    """
    last = before[-1:]
    if text[0].isspace():
        return (text,), "as written, with its space"
    if last.isspace():
        return (text,), "as written, after a space or a line's end"
    if is_opened(before):
        return (text,), "as written, after an opening mark"
    if unicodedata.name(text[0], "").startswith(WITHOUT_SPACES) and not is_spaced(last or " "):
        return (text,), "as written, in a script without spaces"
    closed = last in CLOSING or unicodedata.category(last or " ") in ("Pe", "Pf")
    if word and last and (is_spaced(last) or closed):
        return (f" {text}",), "a word after a space"
    return (text, f" {text}"), ""


ANCHORS = ("\n", ".", "x", "7")


def continue_ids(model: Model, before: str, last: int | None, text: str) -> tuple[tuple[int, ...], bool]:
    """The ids of a text as it continues another one.

    Args:
        before: the prompt's text. last: its last id; None of an empty one.

    Returns: The ids of both beyond those of the first, and whether the first would end in another token: then the
        ids are those of the text behind something that it does not merge with.
    """
    own, whole = model.ids_of(before) if before else [], model.ids_of(before + text)
    if whole[: len(own)] == own and (own[-1] if own else last) == last:
        return tuple(whole[len(own) :]), False
    for anchor in (before[-1:], *ANCHORS):
        own = model.ids_of(anchor) if anchor else []
        whole = model.ids_of(anchor + text)
        if own and whole[: len(own)] == own:
            return tuple(whole[len(own) :]), True
    return tuple(model.ids_of(text)), True


def log_probability(model: Model, tokens: Sequence[int], ids: Sequence[int], logits: Logits | None = None) -> float:
    """The natural logarithm of the probability that a model gives to ``ids`` after ``tokens``."""
    with torch.no_grad():
        if logits is not None and len(ids) == 1:
            found = logits().unsqueeze(0)
        else:
            run = [*tokens, *ids[:-1]]
            if len(run) > model.n_ctx:
                raise InputError(f"the prompt and its target have {len(run)} tokens; {model.name} reads {model.n_ctx}")
            found = last_logits(model, run, len(ids))
        logs = at_least_float32(found).double().log_softmax(-1)
        return float(logs.gather(1, torch.tensor([list(ids)], device=logs.device).T).sum())


def read_text(
    model: Model,
    tokens: Sequence[int],
    before: str,
    text: str,
    what: str,
    word: bool = False,
    logits: Logits | None = None,
) -> tuple[str, tuple[int, ...], str, bool]:
    """A target after a prompt: its text, ids and reading, and whether it joins the prompt's last token.

    Raises: InputError: an empty text, one with a token that the model does not have, or readings that are alike.
    """
    text = check_text(what, text).strip() if word else check_text(what, text)
    if not text:
        raise InputError(f"the {what} is empty: give a word, such as ' Paris'")
    last = None if not before else int(tokens[-1])
    readings, why = possible_readings(before, text, word)
    unknown = model.tokenizer.unk_token_id
    ids = {}
    for reading in readings:
        found, joins = continue_ids(model, before, last, reading)
        if found and (unknown not in found or text == model.tokenizer.unk_token):
            ids[reading] = found, joins
    if not ids:
        raise InputError(f"{what} {quoted(text)} is not in the vocabulary of {model.name}")
    if len(ids) == 1 or len({found for found, _ in ids.values()}) == 1:
        chosen = next(iter(ids))
        why = why or "the one reading that the model has tokens for"
        if chosen != text and not word:
            warn(f"{what} {quoted(text)} is read with a space before it, as {quoted(chosen)}, {why}")
        return chosen, *ids[chosen][:1], why, ids[chosen][1]
    plain, spaced = text, f" {text}"
    logs = {reading: log_probability(model, tokens, found, logits) for reading, (found, _) in ids.items()}
    single = f"its token's id, {ids[plain][0][0]}" if len(ids[plain][0]) == 1 else "its tokens' ids in the prompt"
    if not (logs[plain] > logs[spaced] or logs[spaced] > logs[plain]):  # level, or not a number
        raise InputError(
            f"{what} {quoted(text)} may be meant with a space before it or without, and {model.name} finds both "
            f"equally likely here: write {quoted(spaced)}, or for {quoted(plain)} give {single}"
        )
    if logs[plain] > logs[spaced]:
        return plain, ids[plain][0], "as written, which the model finds likelier than after a space", ids[plain][1]
    if not word:
        other = f" (the one without is token {ids[plain][0][0]}, by its id)" if len(ids[plain][0]) == 1 else ""
        warn(
            f"{what} {quoted(text)} is read with a space before it, as {quoted(spaced)}, which {model.name} finds "
            f"likelier here{other}"
        )
    return spaced, ids[spaced][0], "after a space, which the model finds likelier", ids[spaced][1]


def text_of(model: Model, tokens: Sequence[int]) -> str:
    """The text of a prompt's ids, without the beginning-of-sequence token in front."""
    ids = list(tokens[1:] if tokens and tokens[0] == model.bos_token_id else tokens)
    return str(model.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@checked
def read_answer(
    model: Model,
    prompt: str | Sequence[SupportsIndex],
    target: str | SupportsIndex | None = None,
    foil: str | SupportsIndex | None = None,
    *,
    first_token: bool = False,
    word: bool = False,
    prepend_bos: bool | None = None,
    logits: Logits | None = None,
) -> Answer:
    """Which tokens answer a prompt: the ids of prompt + target beyond those of the prompt.

    A target is read as written where it begins with a space, follows one, follows an opening mark or a line's end, or
    is of a script without spaces; else as written or after a space, whichever the model finds likelier by the whole
    target's probability. A space that is added is warned of. A foil is read in the same way, by itself.

    Args:
        model: from :func:`ffnmem.load`.
        prompt: a text, or its token ids, which are taken as they are.
        target: what follows, as text or as one token id; default the model's own top token.
        foil: what the target is compared with, at the first token where the two part.
        first_token: take the first token of target and foil alone.
        word: target and foil are words, as those of a :class:`ffnmem.Fact`: spaces at their ends do not count, and
            after a letter, a digit or a closing mark a space stands before them, without a warning.
        prepend_bos: of a text; None for the model's own way.
        logits: those after the prompt, where they are known already.

    Returns: An :class:`Answer`.

    Raises: InputError: a text that the model has no tokens for, readings that are equally likely, a foil that is the
        target or its beginning, or more tokens than the model reads. OutOfRangeError: no such token id.
    """
    if isinstance(prompt, str):
        before, tokens = prompt, tuple(model.tokenize(prompt, prepend_bos))
    else:
        tokens = tuple(int(token) for token in prompt)
        before = text_of(model, tokens)
    if target is None:
        target = int((logits() if logits is not None else last_logits(model, tokens)).argmax())

    def read(given: str | SupportsIndex, what: str) -> tuple[str, tuple[int, ...], str, bool]:
        if not isinstance(given, str):
            token = model.token_id(given)
            return model.token_strings([token])[0], (token,), "by its id", False
        text, ids, why, joins = read_text(model, tokens, before, given, what, word, logits)
        if first_token and len(ids) > 1:
            text, ids = model.token_strings(ids[:1])[0], ids[:1]
        return text, ids, why, joins

    text, ids, why, joins = read(target, "target")
    other, other_ids, _, other_joins = (None, None, "", False) if foil is None else read(foil, "foil")
    if other_ids is not None:
        check_foil(ids, other_ids, text, other or "")
    if (joins or other_joins) and not word and not before[-1:].isspace():
        warn(
            f"the prompt would end in another token if it went on with {quoted(text if joins else other or '')}: that "
            "is read as tokens of its own"
        )
    answer = Answer(tokens, ids, other_ids, text, other, why, joins or other_joins)
    if len(answer.tokens) > model.n_ctx:
        raise InputError(
            f"the prompt and its target have {len(answer.tokens)} tokens; {model.name} reads at most {model.n_ctx}"
        )
    return answer


def check_foil(target: Sequence[int], foil: Sequence[int], text: str, other: str) -> None:
    """Raise InputError for a foil that no token tells from the target."""
    if list(target) == list(foil):
        same = "token" if len(target) == 1 else "tokens"
        raise InputError(
            f"target and foil are the same {same}, {quoted(text)}, and their difference is 0: name two that differ"
        )
    if all(a == b for a, b in zip(target, foil, strict=False)):
        short, long = sorted((text, other), key=len)
        raise InputError(
            f"{quoted(long)} begins with all of {quoted(short)}, so no token tells target from foil: name two that "
            "differ"
        )


def last_logits(model: Model, tokens: Sequence[int], count: int = 1) -> Float[Tensor, "count vocab"]:
    """The logits at the last positions of some tokens."""
    with torch.no_grad():
        body = model.layout.body(input_ids=torch.tensor([list(tokens)], device=model.device), use_cache=False)
        return model.logits_of(body.last_hidden_state[0, -count:])


def word_ids(model: Model, prompt: str, word: str) -> tuple[int, ...]:
    """The ids of a fact's target as it continues a prompt: :func:`read_answer` of a word."""
    return read_answer(model, prompt, word, word=True).target


def make_question(model: Model, prompt: str, *words: str) -> Question:
    """A prompt with some targets of facts as its answers; raises InputError as :func:`read_answer`."""
    answers = [read_answer(model, prompt, word, word=True) for word in words]
    return Question(answers[0].prompt, tuple(answer.target for answer in answers))
