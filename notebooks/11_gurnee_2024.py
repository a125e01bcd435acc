# %% [markdown]
# # Gurnee 2024: roles of neurons
#
# Gurnee et al., *Universal Neurons in GPT2 Language Models* ([2401.12181](https://arxiv.org/abs/2401.12181)), looked
# for neurons that occur in each of five GPT-2s trained from different seeds (1 to 5% of all), and named what many of
# them do by their weights: they *predict* or *suppress* a few tokens, *partition* the vocabulary, or set the *entropy*
# of the prediction. Universality itself needs several seeds of one model. There is one `atlas` and one SmolLM2, so it
# is left out here; all other measures are of one model. About a minute, and another one with SmolLM2.

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import ffnmem as fm

model = fm.load("atlas")
documents = [document.text for document in fm.corpus.open_corpus("atlas")]
texts = random.Random(0).sample([text for text in documents if len(text) < 350], 600)
store = fm.scan(model, texts, Path(tempfile.mkdtemp()) / "atlas", project=False)

# %% [markdown]
# ## What a value does to the vocabulary
#
# For each neuron take the cosines of its value with the unembedding of every token (the final norm's gain folded in,
# both centred, as the paper does it). A high *kurtosis* means that a few tokens stand out: upwards (positive *skew*:
# prediction) or downwards (suppression). A high *variance* means that the value moves all of the vocabulary.

# %%
neurons = fm.roles(model, store, n_sequences=None).to_frame()
statistics = ["cosine_kurtosis", "cosine_skew", "cosine_variance"]
figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
for ax, name, threshold in zip(axes, statistics, (10, None, 0.005), strict=True):
    quantiles = neurons.groupby("layer")[name].quantile([0.01, 0.25, 0.5, 0.75, 0.99]).unstack()
    for q, style in zip(quantiles, (":", "--", "-", "--", ":"), strict=True):
        ax.plot(quantiles.index, quantiles[q], style, color="C0", label=f"{100 * q:.0f}%")
    if threshold is not None:
        ax.axhline(threshold, color="C1", label="the paper's threshold")
    ax.set(title=name.replace("_", " "), xlabel="layer")
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# The kurtosis of a normal distribution is 3. The paper calls a neuron a prediction or suppression neuron above 10, a
# partition neuron above a variance of .005. In a narrow model a random direction has a variance of about
# $1/d_\mathrm{model}$, which passes that; `fm.roles` asks for more than 99.9% of random directions have.

# %%
counts = neurons.groupby("layer")[[name for name in neurons if name.startswith("is_")]].sum()
counts.columns = [name.removeprefix("is_").replace("_", " ") for name in counts]
print(f"random directions have a variance of up to {neurons.attrs['partition_null']:.4f}")
counts


# %%
def says(model, rows, k=5):
    """The ends of what some neurons' values promote."""
    found = []
    for row in rows.itertuples():
        tokens = fm.project(model, row.layer, row.neuron, k=k, side="value").to_frame()
        tokens = tokens.groupby("sign")["token"].agg("  ".join)
        found.append({"neuron": f"{row.layer}.{row.neuron}", **tokens})
    return pd.DataFrame(found)


# %% [markdown]
# No neuron of `atlas` is peaked enough. Those that come nearest do predict a small set of tokens, or suppress one:

# %%
peaked = neurons.nlargest(8, "cosine_kurtosis")
says(model, peaked).assign(kurtosis=peaked["cosine_kurtosis"].to_numpy(), skew=peaked["cosine_skew"].to_numpy()).round(
    1
)

# %% [markdown]
# And these partition the vocabulary most:

# %%
partition = neurons.nlargest(4, "cosine_variance")
says(model, partition).assign(variance=partition["cosine_variance"].to_numpy()).round(4)

# %% [markdown]
# ## Entropy neurons
#
# Some neurons of the last layer have long values that hardly move any logit: they write where the unembedding reads
# least, and act through the final norm, which then scales everything down. By the paper's account their values are
# long, their cosines have little variance, and the entropy of the prediction grows as they fire. Take three neurons of
# the last layer: the one that writes most into that near-null space (as a share of its value), the one with the longest
# value, and the one that writes least there. Set each to its largest coefficient in the text, and to twice that.

# %%
last = neurons[neurons["layer"] == model.n_layers - 1]
prompts = texts[:40]


def entropy(change=None):
    """The mean entropy of the prediction at the last token of some texts."""
    with fm.intervene(model, change or {}) if change else torch.no_grad():
        runs = [fm.capture(model, text, logits=True).logits[0, -1].log_softmax(-1) for text in prompts]
    return float(torch.stack([-(logs.exp() * logs).sum() for logs in runs]).mean())


candidates = last.loc[[last["null_share"].idxmax(), last["value_norm"].idxmax(), last["null_share"].idxmin()]]
plain, rows = entropy(), []
for row in candidates.itertuples():
    most = float(store.stats(row.layer, row.neuron)["max"].iloc[0])
    added = {f"entropy at {x}x": entropy({(row.layer, row.neuron): x * most}) - plain for x in (1, 2)}
    rows.append({"neuron": f"{row.layer}.{row.neuron}", "null share": row.null_share, "norm": row.value_norm, **added})
print(f"without a change {plain:.2f} nats; {int(last['is_entropy'].sum())} entropy neurons by the rule of fm.roles")
pd.DataFrame(rows).round(3)

# %% [markdown]
# ## What universal neurons are like
#
# In the paper, universal neurons have long weights, fire rarely, and their pre-activations have a large skew and
# kurtosis: signs that they stand for one thing. Are neurons that are peaked over the vocabulary like that, too?
# Medians:

# %%
both = neurons.merge(store.stats()[["layer", "neuron", "pre_skewness", "pre_kurtosis"]], on=["layer", "neuron"])
rank = both.groupby("layer")["cosine_kurtosis"].rank(pct=True)
groups = np.where(rank > 0.95, "peaked (top 5% of a layer)", "others")
columns = ["value_norm", "firing_rate", "pre_skewness", "pre_kurtosis", "io_cosine", "cosine_skew"]
both.groupby(groups)[columns].median().round(3)

# %% [markdown]
# ## Beside the paper, and SmolLM2
#
# SmolLM2 (`ffnmem get smollm2`, once), by weights alone: the sign of a gated neuron is then a guess from gate and key.


# %%
def beside(neurons, layers):
    upper, last = neurons[neurons["layer"] >= layers / 2], neurons[neurons["layer"] == layers - 1]
    return {
        "prediction": f"{neurons['is_prediction'].sum()}, {upper['is_prediction'].sum()} in the upper half",
        "suppression": f"{neurons['is_suppression'].sum()}",
        "partition": f"{neurons['is_partition'].sum()}", "entropy": f"{neurons['is_entropy'].sum()}",
        "kurtosis, 99% of the last layer": f"{last['cosine_kurtosis'].quantile(0.99):.1f}",
        "neurons": f"{len(neurons):,}",
    }  # fmt: skip


try:
    real = fm.load("smollm2")
    some = pd.concat([fm.roles(real, layer=layer).to_frame() for layer in (5, 14, 23, 29)])
    others = {"SmolLM2, layers 5, 14, 23 and 29": beside(some, real.n_layers)}
    print(says(real, some.nlargest(6, "cosine_kurtosis")).to_string(index=False))
except fm.FfnmemError as missing:
    others = {}
    print(f"SmolLM2 is left out: {missing}")
paper = {
    "prediction": "from the middle of the model on",
    "suppression": "take over in the last layers",
    "partition": "examples, no count", "entropy": "examples, no count",
    "kurtosis, 99% of the last layer": "above 10 where a neuron predicts or suppresses",
    "neurons": "GPT-2 small and medium, Pythia 160M",
}  # fmt: skip
pd.DataFrame({"the paper": paper, "atlas": beside(neurons, model.n_layers), **others}).fillna("")

# %% [markdown]
# No neuron of `atlas` passes the paper's thresholds for prediction and suppression, but its most peaked ones stand in
# the upper half, as there, and can be named: given names, continents, chemical elements, quotes. Its partition neurons
# separate frequent tokens from pieces of rare words, the main direction of the vocabulary, where the paper has classes
# of words. 5.62 does what an entropy neuron does; the longest value does not. Peaked neurons fire a little less often
# and have a little more skew, as universal neurons do. The last layer of SmolLM2 is far more peaked than
# that of `atlas`, over quotes, brackets and stops. That nearly all of its neurons suppress is the guess of the sign:
# with signs from a text, [47 of 119 do](../docs/results/smollm2_neurons.md#roles).
#
# ## To try
#
# 1. Do the peaked neurons fire where the tokens that they promote come next? *Hint: `store.neuron(5, 292)`.*
# 2. What do the partition neurons separate? *Hint: `fm.project(..., k=50)`; how often do the promoted tokens occur in
#    the texts?*
# 3. Add to the entropy neuron only where it fires already. Does the entropy still grow? *Hint:
#    `fm.interventions.Scale(2.0)` in place of a number.*
# 4. Of SmolLM2, take the sign from a text: `fm.roles(real, store, layer=29)` with a store of it. How many prediction
#    neurons become suppression neurons?
