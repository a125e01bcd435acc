# %% [markdown]
# # Voita 2023: dead, n-gram and positional neurons
#
# Voita, Ferrando and Nalmpantis, *Neurons in Large Language Models: Dead, N-gram, Positional*
# ([2309.04827](https://arxiv.org/abs/2309.04827)), sorted the ReLU neurons of OPT (125M to 66B) by when they fire:
# never, at a few tokens, or at some positions. What becomes of these three kinds in `atlas`, whose activation is GELU,
# and in SmolLM2, whose neurons have gates? About a minute, and another one with SmolLM2.
#
# As there, a neuron *fires* where its pre-activation is above 0 (a gated one: where its gate is open).

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

import ffnmem as fm

documents = [document.text for document in fm.corpus.open_corpus("atlas")]
texts = random.Random(0).sample(documents, 900)
model, folder = fm.load("atlas"), Path(tempfile.mkdtemp())
store = fm.scan(model, texts, folder / "atlas", project=False)
print(f"{store.n_tokens:,} tokens; the paper reads 20 million")

# %% [markdown]
# ## Dead neurons
#
# In OPT 66B more than 70% of the neurons of some lower layers never fire, and hardly any of the upper half. A scan
# counts how often each neuron fired.


# %%
def firing(store):
    by_layer = store.stats().groupby("layer")
    rates = by_layer["firing_rate"].quantile([0.05, 0.5, 0.95]).unstack()
    rates.columns = [f"firing rate, {100 * q:.0f}%" for q in rates.columns]
    return by_layer["dead"].sum().to_frame("dead").join(rates)


firing(store).round(3)

# %% [markdown]
# No neuron of `atlas` is dead: below 0, GELU still has a slope, so that training can bring a neuron back.
#
# ## Token detectors
#
# A *token detector* fires if, and only if, the token is one of a few: one to five tokens make up 95% of its firings,
# and it fires at 95% of their occurrences. `fm.roles` reads the store's text again and counts. Here are the fewest
# tokens that make up 95% of a neuron's firings.

# %%
neurons = fm.roles(model, store, n_sequences=None).to_frame()
kinds = pd.cut(
    neurons["covering_types"], [0, 5, 20, 100, 500, 10**6], labels=["1-5", "6-20", "21-100", "101-500", "more"]
)
covering = pd.crosstab(neurons["layer"], kinds.rename("tokens"), dropna=False)
covering.assign(detectors=neurons.groupby("layer")["is_token_detector"].sum())

# %% [markdown]
# None. With half in place of 95%, and fifty tokens in place of five, some neurons come near. Over 80% of the paper's
# detectors *suppress* the tokens that trigger them: the value points away from their unembedding.


# %%
def suppression(model, detectors):
    """The mean cosine of a detector's value and its tokens' unembedding, less that of all tokens."""
    unembedding = model.unembedding.detach()
    unembedding = torch.nn.functional.normalize(unembedding - unembedding.mean(0), dim=-1)
    rows = []
    for row in detectors.itertuples():
        value = torch.nn.functional.normalize(model.ffn[row.layer].values[row.neuron].detach(), dim=-1)
        cosines = unembedding @ value
        ids = [model.token_id(token) for token in row.triggers]
        towards = float(cosines[ids].mean() - cosines.mean())
        rows.append(
            {
                "neuron": f"{row.layer}.{row.neuron}",
                "tokens": "  ".join(row.triggers[:6]).replace("\n", "⏎"),
                "towards": towards,
            }
        )
    return pd.DataFrame(rows, columns=["neuron", "tokens", "towards"])


loose = fm.roles(model, store, n_sequences=None, types=50, coverage=0.5).to_frame()
near = loose[loose["is_token_detector"]]
towards = suppression(model, near)
print(f"{len(near)} near detectors by layer: {near['layer'].value_counts(sort=False).to_dict()}")
print(f"{(towards['towards'] < 0).mean():.0%} suppress their tokens")
towards.sort_values("towards").head(8).round(2)

# %% [markdown]
# ## Positional neurons
#
# How much does a position tell about whether a neuron fires? The paper calls a neuron *positional* above 0.05 nats of
# mutual information. In OPT's smaller models such neurons mark ranges of positions, some oscillating; in larger models
# they are less explicit.

# %%
positional = neurons.groupby("layer").agg(
    positional=("is_position", "sum"), median=("position_information", "median"), most=("position_information", "max")
)
positional.round(3)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
(100 * covering.div(covering.sum(axis=1), axis=0)).plot.bar(ax=left, stacked=True, rot=0, colormap="viridis")
left.set(title="Tokens that make up 95% of a neuron's firings", ylabel="% of the layer's neurons")
left.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
for row in neurons.nlargest(5, "position_information").itertuples():
    by_position = store.by_position(row.layer, row.neuron)
    right.plot(by_position["positions"], by_position["mean"], marker=".", label=f"{row.layer}.{row.neuron}")
right.set(title="The five that tell most about the position", ylabel="mean coefficient", xlabel="position")
right.tick_params(axis="x", rotation=60)
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## Beside the paper, and SmolLM2
#
# SmolLM2 (`ffnmem get smollm2`, once), over few documents: a look and no measurement.


# %%
def beside(store, neurons):
    counts = neurons.groupby("layer")[["is_token_detector", "is_position"]].sum()
    dead, rate = store.stats()["dead"].sum(), store.stats()["firing_rate"].median()
    where = counts.index[counts["is_position"] > 0]
    return {
        "neurons": f"{len(store.stats()):,}", "tokens": f"{store.n_tokens:,}", "dead": f"{dead}",
        "a neuron fires at": f"{rate:.0%} of tokens (median)",
        "token detectors": f"{counts['is_token_detector'].sum()} of {len(neurons):,}",
        "positional": f"{counts['is_position'].sum()} of {len(neurons):,}, in layers {', '.join(map(str, where))}",
    }  # fmt: skip


try:
    real = fm.load("smollm2")
    scanned = fm.scan(real, texts[:60], folder / "smollm2", project=False)
    some = pd.concat([fm.roles(real, scanned, layer=layer, n_sequences=None).neurons for layer in (0, 14, 29)])
    others = {"SmolLM2": beside(scanned, some)}
except fm.FfnmemError as missing:
    others = {}
    print(f"SmolLM2 is left out: {missing}")
paper = {
    "neurons": "OPT 125M to 66B", "tokens": "20 million", "dead": "over 70% of some lower layers of the 66B model",
    "a neuron fires at": "not given", "token detectors": "5,351 in the 66B model, all in the first half",
    "positional": "in smaller models, most in the lowest layers",
}  # fmt: skip
pd.DataFrame({"the paper": paper, "atlas": beside(store, neurons), **others}).fillna("")

# %% [markdown]
# Nothing in `atlas` is dead or detects a token. By the weaker rule some 280 neurons come near, most in layer 0, but
# only a third of them suppress their tokens, among which stops and other frequent ones are. Positional neurons stand in
# the lowest layers, where learned positions are read; SmolLM2, which has rotary positions, has some in each of the
# three layers that are read here. On more text
# [only 5 of its gates never opened](../docs/results/smollm2_neurons.md#roles). And a neuron that fires at a third of
# all tokens cannot detect one: the paper's rule needs a ReLU that is open at few.
#
# ## To try
#
# 1. Which neuron of `atlas` is nearest to dead, and at what does it fire? *Hint: the smallest firing rate in
#    `store.stats()`, then `store.examples(layer, neuron)`.*
# 2. How many near detectors are there with `coverage=0.8`, and with 20 tokens? Do more of them suppress their tokens?
# 3. Is a positional neuron positional in longer documents, too? *Hint: `fm.scan` with other texts and
#    `fm.roles(...).neurons["position_information"]`; `fm.corpus.open_corpus` has more.*
# 4. A gate that never opens need not be silent, since SiLU lets a little through. How much do SmolLM2's dead neurons
#    write? *Hint: `write_norm` in `fm.roles`, over the median of the layer.*
