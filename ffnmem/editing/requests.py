"""What is asked of an editor: a fact and a new target, the contexts in front of it, and the tokens of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, check_count, check_text, quoted
from ..core.types import Seed, Whole, checked
from ..facts.answers import word_ids
from ..facts.fact import Fact
from ..facts.questions import ask_about
from ..models.answers import written_on
from ..models.model import Model
from ..models.replaying import PlainLayers

# Contexts: what stands in front of a fact's prompt while its key is averaged, sampled from the model or given.

PLAIN = "{}"
TOP = 5  # likeliest tokens to sample from
LENGTHS = (5, 10)


@checked
def sample_contexts(
    model: Model, *, n: Whole = 20, lengths: Sequence[int] = LENGTHS, seed: Seed = 0
) -> tuple[str, ...]:
    """``"{}"`` and ``n`` beginnings of text that the model itself writes, each as ``"TEXT. {}"``.

    Each token is drawn from the five likeliest, after the beginning-of-sequence token alone (the end-of-text token
    where a tokenizer has no other). Special tokens are never drawn; curly braces and characters that a cut left
    incomplete are taken out, a line break becomes a space. Edits of the weights act, hooks do not, as in the search for
    v*. As text, a context need not become the same tokens again.

    Args:
        model: from :func:`ffnmem.load`.
        n: how many are sampled; spread evenly over the lengths, the first ones get what is left over.
        lengths: in tokens, the beginning-of-sequence token counted, as the published program counts it.
        seed: of the sampling; torch's own random state stays as it is.

    Raises: InputError: an n below 0, a length below 2 or above what the model reads, a tokenizer that has neither
        token. UnsupportedModelError: a model under an intervention.

    Source: Meng et al. 2022 (2202.05262), appendix E.5 and ``get_context_templates`` of its program: ten samples of 5
        and ten of 10 tokens.
    """
    sizes = [check_count("length", length, least=2) for length in lengths]
    if not sizes:
        raise InputError("lengths is empty: give at least one, such as 10")
    shared = [n // len(sizes) + (place < n % len(sizes)) for place in range(len(sizes))]
    return (
        PLAIN,
        *write_contexts(model, [size for size, rows in zip(sizes, shared, strict=True) for _ in range(rows)], seed),
    )


def write_contexts(model: Model, lengths: Sequence[int], seed: int) -> tuple[str, ...]:
    """A context of each length; of a length not seen before, the ones before it stay the same."""
    if max(lengths, default=0) > model.n_ctx:
        raise InputError(f"length {max(lengths)} is too long: {model.name} reads at most {model.n_ctx} tokens")
    begin = model.bos_token_id if model.bos_token_id is not None else model.tokenizer.eos_token_id
    if begin is None:
        raise InputError(
            f"{model.name}'s tokenizer has no beginning-of-sequence or end-of-text token to sample after: give contexts"
        )
    texts = sample(model, int(begin), lengths, torch.Generator().manual_seed(seed))
    return tuple(f"{cleaned(model, ids)}. {PLAIN}" for ids in texts)


def sample(model: Model, begin: int, lengths: Sequence[int], generator: torch.Generator) -> list[list[int]]:
    """A text of each length after the token ``begin``, which is counted, in one batch: a step costs one pass."""
    if not lengths:
        return []
    # Drawn length by length, so that what is longer changes nothing in the texts before it.
    noise = torch.ones(max(lengths) - 1, len(lengths), TOP)
    for length in dict.fromkeys(lengths):
        own = torch.tensor([other == length for other in lengths])
        for step in range(length - 1):
            noise[step, own] = torch.empty(int(own.sum()), TOP).exponential_(generator=generator)

    def pick(step: int, logits: Float[Tensor, "rows vocab"]) -> Int[Tensor, " rows"]:
        return draw_likely(allowed(model, logits), noise[step])

    return written_on(PlainLayers(model), [[begin]] * len(lengths), [length - 1 for length in lengths], pick)


def allowed(model: Model, logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """Logits with −∞ at special tokens and at rows of the unembedding that stand for no token."""
    kept = logits.float().clone()
    kept[:, sorted(i for i in model.special_token_ids if i < kept.shape[1])] = -torch.inf
    kept[:, len(model.tokenizer) :] = -torch.inf
    return kept


def draw_likely(logits: Float[Tensor, "rows vocab"], noise: Float[Tensor, "rows top"]) -> Int[Tensor, " rows"]:
    """One of the likeliest tokens for each row, by their probabilities and numbers that are exponentially distributed.

    Source: of independent exponential times of given rates, each is the first in proportion to its rate.
    """
    best = logits.topk(min(noise.shape[1], logits.shape[1]), dim=1)
    # On the CPU, whose rounding does not depend on the device.
    times = noise[:, : best.values.shape[1]] / best.values.softmax(dim=1).cpu()
    return best.indices.gather(1, times.argmin(dim=1, keepdim=True).to(logits.device)).squeeze(1)


def cleaned(model: Model, ids: Sequence[int]) -> str:
    """The text of tokens, fit to stand in a template."""
    text = model.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
    for mark in "{}�":
        text = text.replace(mark, "")
    return text.replace("\n\n", " ").replace("\n", " ")


def check_contexts(contexts: Sequence[str]) -> tuple[str, ...]:
    """Contexts as they were given, each with exactly one ``{}``, where the prompt goes; raises InputError."""
    if isinstance(contexts, str):
        raise InputError(f"contexts must be a list of texts, not the one text {quoted(contexts)}")
    found = tuple(contexts)
    if not found:
        raise InputError("contexts is empty: give at least '{}'")
    for context in found:
        if not isinstance(context, str) or context.count(PLAIN) != 1 or context.count("{") + context.count("}") != 2:
            raise InputError(
                f"context {quoted(context)} needs exactly one {{}}, where the prompt goes, and no other braces"
            )
    return found


# What is asked of an editor: a fact and a new target, and the rows of tokens that say it in several contexts.

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

    def prompt(self, target: Sequence[int]) -> tuple[int, ...]:
        """Its tokens without those of the target."""
        return self.tokens[: len(self.tokens) - max(len(target) - 1, 0)]


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
        return self.rows[0].prompt(self.ids)


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
    return [make_request(model, fact, target, contexts) for fact in facts]


def make_request(model: Model, fact: Fact, target: str | None, contexts: Sequence[str]) -> Request:
    wanted = new_target(fact, target)
    return request_for(model, fact, wanted, word_ids(model, fact.text, wanted), contexts)


def new_target(fact: Fact, target: str | None) -> str:
    """The new target of a fact, by default its own; raises InputError where it has none, or its true one."""
    wanted = fact.target_new if target is None else target
    if wanted is not None:
        check_text("target", wanted)
    if wanted is None or not wanted.strip():
        raise InputError(f"fact {quoted(fact.text)} has no new target: name one, such as target='Rome'")
    if wanted.strip() == fact.target_true.strip():
        raise InputError(f"fact {quoted(fact.text)}: the new target {quoted(wanted.strip())} is its true one already")
    return wanted.strip()


def request_for(model: Model, fact: Fact, target: str, ids: tuple[int, ...], contexts: Sequence[str]) -> Request:
    """The rows of a fact in its contexts, followed by the target's tokens but the last."""
    rows = []
    for context in contexts:
        asked = ask_about(model, context.replace("{}", fact.prompt), fact.subject)
        if len(asked.tokens) + len(ids) > model.n_ctx:
            raise InputError(
                f"fact {quoted(fact.text)}: its prompt, a context and the target exceed {model.n_ctx} tokens"
            )
        rows.append(RequestRow(asked.tokens + ids[:-1], asked.subject_last))
    about = ask_about(model, KL_TEMPLATE, fact.subject)
    return Request(fact, target, ids, tuple(rows), RequestRow(about.tokens, about.subject_last))
