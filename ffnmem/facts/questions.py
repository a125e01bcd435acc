"""Questions of facts as tokens: a template with a subject filled in, and where in it the subject's tokens are."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..core.errors import InputError, UnsupportedModelError, quoted
from ..core.number_text import format_probability
from ..models.answers import generate
from ..models.chat import ChatText
from ..models.model import Model
from .answers import log_probability, read_answer
from .templates import only_place

AHEAD = 8  # tokens that the model's own answer may take
UNSURE = 0.03
"""The probability below which a model's own word is no fact that it knows: of the 354 facts of known_1000 that SmolLM2
answers rightly, 39 have an answer below 0.1 and none has one below 0.035 (``filter_known``)."""
FUNCTION_WORDS = frozenset(
    """a an the this that these those its his her their our my your it he she they we you i one some any all both each
    every no not of in on at by for with to from as about into near between and or but which who where what when there
    here also be is are was were been being has have had do does did will would can could may might most more many much
    such same other own very well so if than then because however""".split()  # noqa: SIM905
)
"""English words that only lead to an answer: "The Space Needle is located in the"."""
WORD = re.compile(r"\w[\w'’-]*")


@dataclass(frozen=True)
class SubjectPrompt:
    """A prompt about a subject.

    Attributes:
        text: the whole prompt.
        tokens: its ids, the beginning-of-sequence token included where texts get one.
        subject: the positions of the tokens that hold some of the subject.
    """

    text: str
    tokens: tuple[int, ...]
    subject: range

    @property
    def subject_last(self) -> int:
        """The position of the subject's last token."""
        return self.subject[-1]


def ask_about(
    model: Model, template: str, subject: str, prefix: str = "", prepend_bos: bool | None = None
) -> SubjectPrompt:
    """A template with its ``{}`` filled in, perhaps after other text.

    Args:
        model: whose tokenizer is used.
        template: with exactly one ``{}``.
        subject: what is filled in.
        prefix: text that stands before the template, with its own trailing space.
        prepend_bos: None for the model's own way.

    Raises: InputError: a template without exactly one ``{}``, an empty subject, or more tokens than the model reads.
        UnsupportedModelError: a tokenizer that does not say where its tokens stand in the text.
    """
    if template.count("{}") != 1:
        raise InputError(f"{quoted(template)} needs exactly one {{}} for the subject")
    if not subject.strip():
        raise InputError("the subject is empty")
    begin = len(prefix) + template.index("{}")
    text = prefix + template.replace("{}", subject)
    if isinstance(template, ChatText):
        text = ChatText(text, template.made_of)
    return locate(model, text, begin, begin + len(subject), prepend_bos)


def find_subject(model: Model, text: str, subject: str, prepend_bos: bool | None = None) -> SubjectPrompt:
    """A text and where its subject stands; refused where it does not stand there exactly once.

    It counts where it is a word of its own: "Iran" stands once in "The Iranian capital of Iran". Canonically equivalent
    spellings (NFC and NFD) count as the same.

    Raises: InputError: the subject is empty, not in the text, or there twice. Otherwise as :func:`ask_about`.
    """
    return locate(model, text, *only_place(text, subject), prepend_bos)


def locate(model: Model, text: str, begin: int, end: int, prepend_bos: bool | None = None) -> SubjectPrompt:
    """The tokens that hold the characters from ``begin`` to before ``end``, by the tokenizer's own offsets."""
    if not getattr(model.tokenizer, "is_fast", False):
        raise UnsupportedModelError(
            f"{model.name}'s tokenizer does not say where its tokens stand in the text, which finding a subject needs: "
            "load it with its fast tokenizer"
        )
    tokens = model.tokenize(text, prepend_bos)
    offsets = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    shift = len(tokens) - len(offsets)
    inside = [i for i, (a, b) in enumerate(offsets) if max(skip_space(text, a, b), begin) < min(b, end)]
    if not inside:
        raise InputError(f"no token of {model.name} holds {quoted(text[begin:end])} in {quoted(text)}")
    return SubjectPrompt(text, tuple(tokens), range(inside[0] + shift, inside[-1] + shift + 1))


def skip_space(text: str, begin: int, end: int) -> int:
    """Where a token's text begins without the spaces in front of it."""
    return begin + len(text[begin:end]) - len(text[begin:end].lstrip())


def own_answer(model: Model, text: str) -> str:
    """The word that the model itself says after a prompt.

    Raises: InputError: what it says begins with none.
    """
    tokens = model.tokenize(text)
    room = min(AHEAD, model.n_ctx - len(tokens))
    said = model.tokenizer.decode(generate(model, tokens, room), skip_special_tokens=True) if room > 0 else ""
    word = WORD.search(said)
    if word is None:
        raise InputError(f"{model.name} says {quoted(said)} after {quoted(text)}, which is no word: name what is true")
    return word[0]


def doubt_word(model: Model, text: str, word: str) -> str:
    """Why a model's own word after a prompt is likely no fact that it knows; empty where nothing speaks against it."""
    asked = f"name what is true, with true= (--true): nothing is compared with {quoted(word)}"
    if word.lower() in FUNCTION_WORDS:
        return f"{model.name} says {quoted(word)} after {quoted(text)}, a function word: {asked}"
    answer = read_answer(model, text, word, word=True)
    chance = math.exp(log_probability(model, answer.prompt, answer.target))
    if chance < UNSURE:
        said = f"{model.name} says {quoted(word)} after {quoted(text)}"
        return f"{said}, with a probability of only {format_probability(chance)}: {asked}"
    return ""
