"""Noise on the token embeddings of a subject: how much, and which, so that a prompt's depends on nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..arguments import public
from ..errors import InputError
from ..facts.asking import SubjectPrompt, ask_about
from ..facts.fact import Fact
from ..models import Model
from ..models.layout import inner
from ..models.turns import in_turn
from .settings import FACTOR


@public
@in_turn
def noise_scale(model: Model, facts: Iterable[Fact], factor: float = FACTOR, prepend_bos: bool | None = None) -> float:
    """The standard deviation of the noise that hides the subjects of some facts.

    Args:
        model: from :func:`ffnmem.load`.
        facts: whose subjects' tokens, as they stand in the prompts, are taken together, each as often as it is asked
            about; facts that cannot be asked are left out.
        factor: how many standard deviations of their embeddings.
        prepend_bos: None for the model's own way.

    Returns: ``factor`` times the standard deviation of all numbers of all these embeddings.

    Raises: InputError: no fact that can be asked.

    Source: Meng et al. 2022, section 2.1 and appendix B.1.
    """
    asked = []
    for fact in facts:
        try:
            asked.append(ask_about(model, fact.prompt, fact.subject, prepend_bos=prepend_bos))
        except InputError:
            continue
    if not asked:
        raise InputError(f"no fact that {model.name} can be asked, so there is no noise scale: give noise a number")
    return scale_of(model, asked, factor)


def scale_of(model: Model, asked: Sequence[SubjectPrompt], factor: float = FACTOR) -> float:
    """The same for prompts whose subjects are found already."""
    ids = [one.tokens[position] for one in asked for position in one.subject]
    return factor * float(embed(model, torch.tensor(ids, device=model.device)).double().std())


def embed(model: Model, tokens: Int[Tensor, "*pos"]) -> Float[Tensor, "*pos d_embedding"]:
    """Token embeddings as the first layer gets them, before positions."""
    with torch.no_grad():
        found: Tensor = inner(model.layout.embedding)(tokens)
    return found


def standard_noise(
    seed: int, text: str, samples: int, tokens: int, width: int
) -> Float[Tensor, "samples tokens width"]:
    """Independent standard normal numbers, in float64, the same for the same seed and prompt.

    More samples begin with the same ones; the model's dtype and device do not matter, nor does what a fact is called.
    """
    digest = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])
    drawn = np.random.default_rng([seed, digest]).standard_normal((samples, tokens, width))
    return torch.from_numpy(drawn)


def corrupted(
    model: Model, asked: SubjectPrompt, noise: float, samples: int, seed: int
) -> Float[Tensor, "rows pos d_embedding"]:
    """Token embeddings of the prompt as it is, in row 0, and with noise on the subject's tokens in ``samples`` more."""
    own = embed(model, torch.tensor([asked.tokens], device=model.device))
    rows = own.repeat(samples + 1, 1, 1)
    drawn = standard_noise(seed, asked.text, samples, len(asked.subject), own.shape[-1])
    rows[1:, asked.subject.start : asked.subject.stop] += (noise * drawn).to(own)
    return rows
