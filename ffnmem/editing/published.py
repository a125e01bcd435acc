"""Published hyperparameters of editors, by the model's name: what the authors' programs keep in their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

STOP = 0.05
"""The loss from which down all programs that look for a v* take no further step: no file names it."""


@dataclass(frozen=True)
class PublishedNumbers:
    """Of one editor for one model; in brackets what the files call it.

    Attributes:
        layers: whose values change, ascending; v* is found at the last (layers).
        clamp: the largest ‖δ‖ in units of ‖v₀‖ (clamp_norm_factor).
        steps: of Adam, the last of which only measures (v_num_grad_steps).
        rate: Adam's step size (v_lr).
        kl, decay: weights of the essence's KL divergence and of ‖δ‖/‖v₀‖² (kl_factor, v_weight_decay).
        weight: of the corpus against the facts (mom2_update_weight). This and what follows is 0 where an editor has it
            not.
        threshold: of C's eigenvalues (nullspace_threshold). penalty: λ (L2).
        file: of the authors' program; empty where it has none for this model.
    """

    layers: tuple[int, ...]
    clamp: float
    steps: int = 20
    rate: float = 0.5
    kl: float = 0.0625
    decay: float = 0.5
    weight: float = 0.0
    threshold: float = 0.0
    penalty: float = 0.0
    file: str = ""


@dataclass(frozen=True)
class PublishedBounds:
    """Of FT-L for one model: no weight moves further than ``bound`` (norm_constraint) in steps of ``rate`` (lr)."""

    bound: float
    rate: float = 5e-4
    file: str = ""


XL, J = tuple(range(13, 18)), tuple(range(3, 9))

EDITORS: Mapping[str, Mapping[str, PublishedNumbers]] = MappingProxyType(
    {
        "rome": {  # kmeng01/rome and kmeng01/memit
            "gpt2": PublishedNumbers((5,), 4.0),  # no file: a layer at the same depth as the others'
            "gpt2-medium": PublishedNumbers((8,), 3.0, file="hparams/ROME/gpt2-medium.json"),
            "gpt2-large": PublishedNumbers((12,), 4.0, file="hparams/ROME/gpt2-large.json"),
            "gpt2-xl": PublishedNumbers((17,), 4.0, file="hparams/ROME/gpt2-xl.json"),
            "gpt-j-6b": PublishedNumbers((5,), 4.0, file="hparams/ROME/EleutherAI_gpt-j-6B.json"),
        },
        "memit": {  # kmeng01/memit
            "gpt2-xl": PublishedNumbers(XL, 0.75, weight=20_000.0, file="hparams/MEMIT/gpt2-xl.json"),
            "gpt-j-6b": PublishedNumbers(
                J, 0.75, steps=25, weight=15_000.0, file="hparams/MEMIT/EleutherAI_gpt-j-6B.json"
            ),
        },
        "alphaedit": {  # jianghoucheng/AlphaEdit
            "gpt2-xl": PublishedNumbers(XL, 0.75, threshold=0.02, penalty=10.0, file="hparams/AlphaEdit/gpt2-xl.json"),
            "gpt-j-6b": PublishedNumbers(
                J, 0.75, steps=25, threshold=0.02, penalty=10.0, file="hparams/AlphaEdit/EleutherAI_gpt-j-6B.json"
            ),
        },
    }
)
"""By editor, then by the model's name as :func:`plain_name` has it."""

FT_L: Mapping[str, PublishedBounds] = MappingProxyType(
    {
        "gpt2": PublishedBounds(5e-4),  # no file: as for GPT-2 XL
        "gpt2-medium": PublishedBounds(2e-3, file="hparams/FT/gpt2-medium_constr.json"),
        "gpt2-large": PublishedBounds(1e-3, file="hparams/FT/gpt2-large_constr.json"),
        "gpt2-xl": PublishedBounds(5e-4, file="hparams/FT/gpt2-xl_constr.json"),
        "gpt-j-6b": PublishedBounds(5e-5, file="hparams/FT/EleutherAI_gpt-j-6B_constr.json"),
    }
)
"""By the model's name. All of these files tune layer 0."""

UNNAMED: Mapping[str, PublishedNumbers] = MappingProxyType(
    {
        "rome": PublishedNumbers((), 4.0),
        "memit": PublishedNumbers((), 0.75),
        "alphaedit": PublishedNumbers((), 0.75, threshold=0.02, penalty=10.0),
    }
)
"""What an editor's files agree on, for models that have none: without layers, and weights that depend on a model."""

OWNERS = ("openai-community/", "EleutherAI/")


def plain_name(name: str) -> str:
    """A model's name without its owner, in small letters."""
    return name.rsplit("/", 1)[-1].lower() if name.startswith(OWNERS) else name.lower()


def published(editor: str, name: str) -> PublishedNumbers | None:
    """An editor's hyperparameters for a model of this name; None where nobody published any."""
    return EDITORS[editor].get(plain_name(name))
