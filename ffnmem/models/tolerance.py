"""How far a sum may be from what the model computed before it is warned of: what rounding explains, by dtype."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike

from ..core.errors import SILENT, warn
from .model import Model

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 0.01, torch.bfloat16: 0.1}
"""By a model's dtype, relative to the largest term of a sum: at least four times the largest error in
docs/methods/memories.md (`python benchmarks/errors_by_dtype.py`)."""


def check_identity(
    model: Model,
    name: str,
    errors: ArrayLike | torch.Tensor,
    scales: ArrayLike | torch.Tensor,
    least: float = 1.0,
    again: bool = False,
) -> None:
    """Warn, once for each model and name, of an identity that misses by more than rounding explains.

    Args:
        name: of the identity, such as ``"attribute"``.
        errors: ``[n]``, the errors of its sums. scales: ``[n]``, the largest absolute term of each, or what it
            should come to. least: the smallest scale; smaller ones are taken as this. again: whether a part of the sums
            is of one more pass: some attention takes its softmax in float32, where both round differently.
    """
    missed = torch.as_tensor(errors, dtype=torch.float64).cpu().reshape(-1).abs()
    scale = torch.as_tensor(scales, dtype=torch.float64).cpu().reshape(-1).clamp(min=least)
    own = TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])
    allowed = max(own, TOLERANCE[torch.float32] if again else own) * scale
    worst = int((missed - allowed).argmax())
    if missed[worst] <= allowed[worst] or name in model.inexact or SILENT.get():
        return
    model.inexact.add(name)
    dtype = str(model.dtype).removeprefix("torch.")
    warn(
        f"{name}: the sum misses what {model.name} computed by {float(missed[worst]):.1e}, where rounding in {dtype} "
        f"explains at most {float(allowed[worst]):.0e}; usual causes: a hook that changes an output (yours, or those "
        "of edit.hooks, for which there is edit.applied), a forward that was replaced, weights that are quantised as "
        "they run, arithmetic in TF32 or under autocast"
    )
