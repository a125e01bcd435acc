"""What is asked of an editor: a fact and a new target, and the rows of tokens that say it in several contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..captures import capture
from ..errors import InputError, check_text, quoted
from ..facts import Fact
from ..facts.asking import ask_about, target_ids
from ..models import Model
from ..targets import spelled, warn_of_trailing_space

KL_TEMPLATE = "{} is a"


@dataclass(frozen=True)
class RequestRow:
    """A prompt with all of its target's tokens but the last one.

    Attributes:
        tokens: its ids.
        lookup: the position of the subject's last token.
    """

    tokens: tuple[int, ...]
    lookup: int

    @property
    def after(self) -> int:
        """How many positions there are from the lookup on."""
        return len(self.tokens) - self.lookup


@dataclass(frozen=True)
class Request:
    """One rewrite: this fact shall have that target.

    Attributes:
        fact: what is rewritten.
        target: the new one, a plain word or some.
        ids: its tokens.
        rows: the fact's prompt after each context, the first one without any.
        essence: the prompt whose prediction shall stay (Meng et al. 2022, §3.1).
    """

    fact: Fact
    target: str
    ids: tuple[int, ...]
    rows: tuple[RequestRow, ...]
    essence: RequestRow

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the fact's prompt alone."""
        tokens = self.rows[0].tokens
        return tokens[: len(tokens) - max(len(self.ids) - 1, 0)]


def edit_target(model: Model, facts: Sequence[Fact], target: str | None) -> str | None:
    """A new target of all of some facts with the space that it has after the first one's prompt.

    By the rule of :func:`ffnmem.targets.spelled`, with its warning where the space is added.

    Raises: InputError: no text, or one that the model finds likelier without a space, which no target of a fact is.
    """
    if (
        target is None or not facts or check_text("target", target).strip() in ("", facts[0].target_true.strip())
    ):  # refused for what it is
        return target
    text = facts[0].text
    meant = spelled(model, target, lambda: capture(model, text).logits_at(0, -1), before=text, one=False)
    if not meant[0].isspace() and not text[-1:].isspace():
        raise InputError(
            f"target {quoted(target)}: {model.name} finds it likelier without a space before it after {quoted(text)}, "
            f"and the target of a fact is a word after a space: write {quoted(' ' + target)} to say so"
        )
    return meant


def make_requests(model: Model, facts: Sequence[Fact], target: str | None, contexts: Sequence[str]) -> list[Request]:
    """The requests for some facts.

    Args:
        model: whose tokenizer is used.
        facts: what to rewrite.
        target: the new target of all; default each fact's own ``target_new``.
        contexts: templates with one ``{}`` for the prompt; the first must be ``"{}"``.

    Raises: InputError: a fact without a new target, a target that is the true one, or a prompt that is too long.
    """
    if not contexts or contexts[0] != "{}":
        raise InputError("the first context must be '{}', the prompt without any")
    warn_of_trailing_space(model, *(fact.text for fact in facts))
    return [make_request(model, fact, target, contexts) for fact in facts]


def make_request(model: Model, fact: Fact, target: str | None, contexts: Sequence[str]) -> Request:
    wanted = fact.target_new if target is None else target
    if wanted is not None:
        check_text("target", wanted)
    name = fact.name
    if wanted is None or not wanted.strip():
        raise InputError(f"fact {quoted(name)} has no new target: name one, such as target='Rome'")
    if wanted.strip() == fact.target_true.strip():
        raise InputError(f"fact {quoted(name)}: the new target {quoted(wanted.strip())} is its true one already")
    return request_for(model, fact, wanted.strip(), target_ids(model, wanted), contexts)


def key_request(model: Model, fact: Fact, contexts: Sequence[str]) -> Request:
    """A request that asks for no target, for the key of a fact alone."""
    return request_for(model, fact, "", (), contexts)


def request_for(model: Model, fact: Fact, target: str, ids: tuple[int, ...], contexts: Sequence[str]) -> Request:
    """The rows of a fact in its contexts, followed by the target's tokens but the last."""
    rows = []
    for context in contexts:
        asked = ask_about(model, context.replace("{}", fact.prompt), fact.subject)
        if len(asked.tokens) + len(ids) > model.n_ctx:
            name = fact.name
            raise InputError(f"fact {quoted(name)}: its prompt, a context and the target exceed {model.n_ctx} tokens")
        rows.append(RequestRow(asked.tokens + ids[:-1], asked.subject_last))
    about = ask_about(model, KL_TEMPLATE, fact.subject)
    return Request(fact, target, ids, tuple(rows), RequestRow(about.tokens, about.subject_last))
