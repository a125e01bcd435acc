"""Contexts: what stands in front of a fact's prompt while its key is averaged, sampled from the model or given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..arguments import public
from ..errors import InputError, check_count, check_seed, quoted
from ..models import Model
from ..models.turns import in_turn

PLAIN = "{}"
TOP = 5  # likeliest tokens to sample from
LENGTHS = (5, 10)


@public
@in_turn
def sample_contexts(model: Model, *, n: int = 20, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> tuple[str, ...]:
    """``"{}"`` and ``n`` beginnings of text that the model itself writes, each as ``"TEXT. {}"``.

    Each token is drawn from the five likeliest, after the beginning-of-sequence token alone (the end-of-text token
    where a tokenizer has no other). Special tokens are never drawn; curly braces and characters that a cut left
    incomplete are taken out, a line break becomes a space. Hooks on the model act. As text, a context need not become
    the same tokens again.

    Args:
        model: from :func:`ffnmem.load`.
        n: how many are sampled; spread evenly over the lengths, the first ones get what is left over.
        lengths: in tokens, the beginning-of-sequence token counted, as the published program counts it.
        seed: of the sampling; torch's own random state stays as it is.

    Raises: InputError: an n below 0, a length below 2 or above what the model reads, a tokenizer that has neither
        token.

    Source: Meng et al. 2022 (2202.05262), appendix E.5 and ``get_context_templates`` of its program: ten samples of 5
        and ten of 10 tokens.
    """
    check_count("n", n, least=0)
    check_seed(seed)
    sizes = [check_count("length", length, least=2) for length in lengths]
    if not sizes:
        raise InputError("lengths is empty: give at least one, such as 10")
    if max(sizes) > model.n_ctx:
        raise InputError(f"length {max(sizes)} is too long: {model.name} reads at most {model.n_ctx} tokens")
    begin = model.bos_token_id if model.bos_token_id is not None else model.tokenizer.eos_token_id
    if begin is None:
        raise InputError(
            f"{model.name}'s tokenizer has no beginning-of-sequence or end-of-text token to sample after: give contexts"
        )
    generator = torch.Generator().manual_seed(seed)
    found = [PLAIN]
    for place, size in enumerate(sizes):
        rows = n // len(sizes) + (place < n % len(sizes))
        if rows:
            found += [f"{cleaned(model, ids)}. {PLAIN}" for ids in sample(model, int(begin), rows, size, generator)]
    return tuple(found)


def sample(model: Model, begin: int, rows: int, size: int, generator: torch.Generator) -> list[list[int]]:
    """``rows`` texts of ``size - 1`` tokens after the token ``begin``, all of them in one batch a step."""
    tokens = torch.full((rows, 1), begin, device=model.device)
    with torch.no_grad():
        while tokens.shape[1] < size:
            logits = model.hf_model(input_ids=tokens, use_cache=False).logits[:, -1]
            tokens = torch.cat([tokens, drawn(allowed(model, logits), generator)], dim=1)
    return [[int(i) for i in row[1:]] for row in tokens]


def allowed(model: Model, logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
    """Logits with −∞ at special tokens and at rows of the unembedding that stand for no token."""
    kept = logits.float().clone()
    kept[:, sorted(i for i in model.special_token_ids if i < kept.shape[1])] = -torch.inf
    kept[:, len(model.tokenizer) :] = -torch.inf
    return kept


def drawn(logits: Float[Tensor, "rows vocab"], generator: torch.Generator) -> Int[Tensor, "rows 1"]:
    """One of the TOP likeliest tokens for each row, by their probabilities."""
    best = logits.topk(min(TOP, logits.shape[1]), dim=1)
    # On the CPU, whose random numbers do not depend on the device.
    choice = torch.multinomial(best.values.softmax(dim=1).cpu(), 1, generator=generator)
    return best.indices.gather(1, choice.to(logits.device))


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
