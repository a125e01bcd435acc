"""What values really promote: the scores of both lenses beside the measured effect of adding the value, by layer.

The measured effect of a value v of layer l on a token: ±εv is added to what the FFN writes at one random position of
each of many texts, and half the difference of the token's logits, summed over that position and all later ones and
divided by ε, is averaged over the texts. ‖εv‖ is a share of the residual stream's mean norm there. A lens is as good as
the correlation of its scores with these effects, over all tokens of the vocabulary, averaged over values; its interval
is a bootstrap over values. ``ceiling`` is what a perfect lens could reach, for the effects themselves are means over a
sample: √(2r/(1 + r)) of the correlation r between those of two halves of the texts (Spearman 1910).

Of the corpus that the lens was made of, only sequences count that it has not seen.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from common import machine
from torch import Tensor

import ffnmem as fm
from ffnmem.corpus.batches import Sequences
from ffnmem.corpus.excerpts import TextSettings
from ffnmem.corpus.packing import pack
from ffnmem.corpus.sources import open_corpus
from ffnmem.models.replaying import PlainLayers, Replay
from ffnmem.vocabulary.lenses import JacobianLens, PageTexts
from ffnmem.vocabulary.vectors import side_tokens, side_vectors

DRAWS = 1000


def effects(
    model: fm.Model, texts: list[Tensor], neurons: dict[int, list[int]], share: float, seed: int
) -> dict[int, Tensor]:
    """By layer, ``[half, neuron, vocab]``: measured effects on every token's logit, for each half of the texts."""
    rng = np.random.default_rng(seed)
    sums = {layer: torch.zeros(2, len(some), model.d_model) for layer, some in neurons.items()}
    for number, tokens in enumerate(texts):
        replay = Replay(PlainLayers(model), tokens.unsqueeze(0))
        lead = int(model.prepend_bos)
        first = int(rng.integers(lead, len(tokens)))
        for layer, some in neurons.items():
            values = model.ffn[layer].values.detach()[some].float()
            epsilon = share * replay.stream[layer + 1][0, lead:].norm(dim=1).mean() / values.norm(dim=1, keepdim=True)
            more = torch.zeros(2 * len(some), len(tokens) - first, model.d_model)
            more[:, 0] = torch.cat([epsilon * values, -epsilon * values])
            with torch.no_grad():
                outputs = replay.outputs([layer] * len(more), first, more)
                final = replay.finish([layer] * len(more), outputs, last=outputs.shape[1])
                plus, minus = replay.layers.final_norm(final).sum(1).chunk(2)
            sums[layer][number % 2] += (plus - minus) / (2 * epsilon)
    w = side_tokens(model, "value").float()
    return {layer: found @ w.T for layer, found in sums.items()}


def correlations(scores: Tensor, measured: Tensor) -> Tensor:
    """Of each row, over the vocabulary."""
    a, b = (x.double() - x.double().mean(1, keepdim=True) for x in (scores, measured))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def interval(each: Tensor, rng: np.random.Generator) -> tuple[float, float]:
    """95%, a bootstrap over values."""
    drawn = each.numpy()[rng.integers(0, len(each), (DRAWS, len(each)))].mean(1)
    return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def seen(lenses: list[JacobianLens | None], sequences: Sequences, settings: TextSettings) -> np.ndarray:
    """The sequences of a corpus that lenses were made of."""
    found = [np.zeros(0, np.int64)]
    for lens in lenses:
        if lens is not None and lens.corpus_hash == sequences.packed.hash:
            how = lens.provenance
            rows = how["batch_tokens"] // how["context"]
            found.append(PageTexts(sequences, settings, how["pages"], rows, how["seed"]).numbers.ravel())
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="atlas")
    parser.add_argument("--corpus", default="atlas", help="the texts that values are added in")
    parser.add_argument("--lens", nargs="+", default=["jacobian"], help="lenses' files; default: the one of the model")
    parser.add_argument("--texts", type=int, default=192)
    parser.add_argument("--neurons", type=int, default=16, help="of each layer")
    parser.add_argument("--layers", type=int, nargs="*", help="default: all")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1, help="of texts, positions and neurons")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    model = fm.load(asked.model)
    lenses = {name: fm.vocabulary.load_lens(model, name) for name in ("logit", *asked.lens)}
    rng = np.random.default_rng(asked.seed)
    settings = TextSettings.checked(model, None, None, 2048)
    with TemporaryDirectory() as folder:
        sequences = settings.sequences(pack(open_corpus(asked.corpus), model, Path(folder) / "corpus"))
        unseen = np.setdiff1d(np.arange(len(sequences)), seen([*lenses.values()], sequences, settings))
        chosen = rng.choice(unseen, asked.texts, replace=False)
        texts = [torch.from_numpy(sequences.sequence_tokens(int(n))) for n in chosen]
    layers = range(model.n_layers) if asked.layers is None else asked.layers
    neurons = {layer: sorted(rng.choice(model.ffn[layer].d_mlp, asked.neurons, replace=False)) for layer in layers}
    measured = effects(model, texts, neurons, asked.share, asked.seed)
    rows = []
    w = side_tokens(model, "value").float()
    for layer, halves in measured.items():
        row: dict[str, float] = {"layer": layer}
        for name, through in lenses.items():
            name = Path(name).stem
            scores = side_vectors(model, layer, neurons[layer], "value", "folded", through) @ w.T
            each = correlations(scores, halves.sum(0))
            low, high = interval(each, rng)
            row |= {name: float(each.mean()), f"{name}_low": low, f"{name}_high": high}
        r = float(correlations(halves[0], halves[1]).mean().clamp(min=0))
        rows.append({**row, "ceiling": (2 * r / (1 + r)) ** 0.5})
    frame = pd.DataFrame(rows)
    print(f"{model.name} on {asked.corpus}: {asked.texts} texts, {asked.neurons} values a layer; {machine()}")
    print("\n".join(f"{Path(name).stem}: {one}" for name, one in lenses.items()))
    print(frame.to_string(index=False, float_format=lambda x: f"{x:.3f}"))
    if asked.json is not None:
        said = {name: dict(one.provenance) for name, one in lenses.items() if one is not None}
        asked.json.write_text(json.dumps({"rows": rows, "lenses": said}, indent=1))


if __name__ == "__main__":
    main()
