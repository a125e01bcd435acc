"""Continuations of a prompt, by Hugging Face's own generation with its cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError, check_count, check_seed, quoted
from .model import Model
from .turns import in_turn


@in_turn
def generate(
    model: Model, tokens: Sequence[int], new: int, *, temperature: float | None = None, seed: int = 0
) -> list[int]:
    """Up to ``new`` token ids after a prompt; fewer where the model ends its text. Hooks on the model act.

    Args:
        model: from :func:`ffnmem.load`.
        tokens: the prompt's ids.
        new: how many.
        temperature: None takes the likeliest token each time; a number samples, with the logits divided by it.
        seed: of the sampling; torch's own random state stays as it is.

    Raises:
        InputError: more than the model reads, an empty prompt, or a temperature that is not above 0.
    """
    check_count("new", new)
    check_seed(seed)
    if not tokens:
        raise InputError("the prompt is empty: give at least one token")
    if len(tokens) + new > model.n_ctx:
        raise InputError(
            f"{len(tokens)} tokens and {new} new ones are more than {model.name} reads, {model.n_ctx}: "
            f"generate at most {max(model.n_ctx - len(tokens), 0)}"
        )
    if temperature is not None and not (temperature > 0 and math.isfinite(temperature)):
        raise InputError(f"temperature must be a number above 0, not {quoted(temperature)}")
    ids = torch.tensor([list(tokens)], device=model.device)
    end = model.tokenizer.eos_token_id
    with torch.no_grad():
        found = model.hf_model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            pad_token_id=end if end is not None else (model.bos_token_id or 0),
            use_cache=True,
            do_sample=False,
            logits_processor=[] if temperature is None else [Drawing(temperature, seed, model.device)],
        )
    return [int(i) for i in found[0, len(tokens) :]]


class Drawing:
    """Leaves the likeliest token to be one that was drawn: torch's own random state is every thread's, this is not.

    The tokens are those that Hugging Face's sampling gives after ``torch.manual_seed(seed)``.
    """

    def __init__(self, temperature: float, seed: int, device: torch.device) -> None:
        self.temperature = temperature
        self.generator = torch.Generator(device).manual_seed(seed)

    def __call__(
        self, _ids: Int[Tensor, "rows pos"], logits: Float[Tensor, "rows vocab"]
    ) -> Float[Tensor, "rows vocab"]:
        probabilities = (logits / self.temperature).softmax(dim=-1)
        drawn = torch.multinomial(probabilities, 1, generator=self.generator)
        return torch.full_like(logits, -torch.inf).scatter(1, drawn, 0.0)
