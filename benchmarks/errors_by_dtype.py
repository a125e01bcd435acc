"""By dtype, the largest error of each identity, with the model that has it, and the tolerance above which results warn.

Over the toy architectures of the tests, atlas, two random models (of GPT-2 small's shape, and a mixture of experts) and
SmolLM2 (``ffnmem get smollm2``): ``decompose`` of all layers at the first and last position, ``attribute`` of the
likeliest token, of it minus the second, and of every next token, ``attribute_paths``, and ``circuit`` of 15 firings.
Errors are relative to what :func:`ffnmem.models.tolerance.check_identity` measures them by.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import SHAPES, toy_tokenizer

import ffnmem as fm
from ffnmem.models.tolerance import TOLERANCE
from ffnmem.prompts import attribution, circuits, paths

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.architectures import DECODERS
from tests.helpers import PROMPT, build_tokenizer

TEXTS = (PROMPT, "The mother tongue of Danielle Darrieux is", "When I was young, my father took me into the city.")
MODELS = ("toys", "atlas", *SHAPES, "smollm2")
IDENTITIES = ("decompose", "attribute", "attribute_paths", "circuit")


def loaded(name: str, dtype: torch.dtype) -> Iterator[tuple[fm.Model, list[Any]]]:
    if name == "toys":
        for kind, build in DECODERS.items():
            model = fm.load(build(), tokenizer=build_tokenizer(), dtype=dtype)
            model.name = kind
            yield model, [PROMPT]
    elif name in SHAPES:
        plain = SHAPES[name]()
        model = fm.load(plain, tokenizer=toy_tokenizer(plain.config.vocab_size), dtype=dtype)
        model.name = name
        yield model, [torch.randint(0, 40_000, (1, 32), generator=torch.Generator().manual_seed(0))]
    else:
        yield fm.load(name, dtype=dtype), [*TEXTS]


def ask_everything(model: fm.Model, prompt: Any) -> None:
    capture = fm.capture(model, prompt)
    for layer in range(model.n_layers):
        for position in (0, -1):
            fm.decompose(capture, layer, position)
    first, second = capture.logits_at(0, capture.length() - 1).topk(2).indices.tolist()
    fm.attribute(capture, fm.prompts.NEXT)
    for foil in (None, second):
        fm.attribute(capture, first, foil)
        fm.attribute_paths(capture, first, foil)
    fm.circuit(capture, fm.causal_scores(capture, first, exact=0).top(15), first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    models = parser.parse_args().models
    worst: dict[str, tuple[float, str]] = {}

    def record(model: fm.Model, identity: str, errors: Any, scales: Any, least: float = 1.0) -> None:
        scales = torch.as_tensor(scales).double().clamp(min=max(least, 1e-30))
        error = float((torch.as_tensor(errors).double().abs() / scales).max())
        name = identity.split()[0]
        worst[name] = max(worst.get(name, (0.0, "")), (error, model.name))

    for module in (attribution, circuits, paths):
        module.check_identity = record  # type: ignore[attr-defined]
    names = " | ".join(f"`{one}`" for one in IDENTITIES)
    print(f"| dtype | tolerance | {names} |\n|---|{'--:|' * (len(IDENTITIES) + 1)}")
    for dtype, tolerance in TOLERANCE.items():
        worst.clear()
        for group in models:
            for model, prompts in loaded(group, dtype):
                for prompt in prompts:
                    ask_everything(model, prompt)
        cells = [f"{error:.1e} ({name})" for error, name in (worst[one] for one in IDENTITIES)]
        print(f"| {str(dtype)[6:]} | {tolerance:.0e} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
