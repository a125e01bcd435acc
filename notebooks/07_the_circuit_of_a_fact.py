# %% [markdown]
# # The circuit of a fact
#
# *The Eiffel Tower is located in the city of* … **Paris**, and *the Kremlin* … **Moscow**. Which memories decide that?
# Not all that an answer needs is worth a look: much of it is syntax and position, which both prompts share. So the
# question is put to two prompts that differ in one thing; then to one of them alone: which memories made which fire,
# how few of them are enough, and what an edit does to all this. First in `atlas`, the small model that comes with
# `ffnmem`, then in SmolLM2, which people use. All of it takes about three minutes.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import ffnmem as fm

model = fm.load("atlas")
prompt = "The Eiffel Tower is located in the city of"
found = fm.contrast(model, prompt, "The Kremlin is located in the city of")
found

# %% [markdown]
# Three experiments stand behind the table. Every *other* firing (a neuron at a position) is set to what it is after
# the Kremlin, and the model still says Paris; *these* are, and it does not; and put into the Kremlin's run, these
# alone bring Paris along. As many drawn at random do nothing. Where are they?

# %%
fig, axes = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
fm.plots.contrast(found, ax=axes[0])
ax = fm.plots.contrast_curve(found, ax=axes[1])

# %% [markdown]
# At " Tower", where the name is complete, in the first layers; and at " of", where the answer is read off, in the
# last. How do they make one another differ? An edge is what one memory adds to what another reads, in the one run
# minus in the other; all that is not drawn is one node, so that the edges into a memory sum to its difference:

# %%
graph = found.graph(top=12)
graph

# %% [markdown]
# ## In a real model
#
# SmolLM2-135M-Instruct has 30 layers of 1,536 gated neurons. `fm.models.get` downloads it once (93 MB), as in [the
# sixth notebook](06_a_real_model.ipynb). Why *are*, and not *is*?

# %%
fm.models.get("smollm2")
real = fm.load("smollm2")
agreement = fm.contrast(real, "The keys to the cabinet", "The key to the cabinet", " are", " is")
print(agreement.verdict)
agreement.top(10)[["layer", "neuron", "token", "coefficient", "counterfactual", "exact", "promotes"]].round(2)

# %% [markdown]
# Some read like a story: 25.1516 fires at *keys*, 26.630 at *cabinet*, and both promote *are* and *were*. Others count
# as much, by experiment, and write nothing that the vocabulary shows. Is this the verb's machinery, or this
# sentence's? What recurs in one half of some pairs is tried on the other half:

# %%
nouns = {"book": "on the table", "dog": "near the house", "author": "of the report", "road": "to the village"}
pairs = [(f"The {noun}s {phrase}", f"The {noun} {phrase}", " are", " is") for noun, phrase in nouns.items()]
task = fm.interventions.contrast_over(real, pairs)
task

# %% [markdown]
# ## How few are enough?
#
# Back to `atlas`, and to one prompt. Keep some firings (a neuron at a position), set all others to what they are on
# average over other facts, and run the model: how much of the difference between " Paris" and " Rome" is left?
# `random` is the same with as many firings drawn at random.

# %%
capture = fm.capture(model, prompt)
facts = fm.load_facts("atlas")
others = fm.capture(model, [fact.text for fact in facts[:100]])
scores = fm.causal_scores(capture, " Paris", foil=" Rome", mean=others)
enough = fm.faithfulness(capture, " Paris", foil=" Rome", firings=scores, mean=others)
ax = fm.plots.faithfulness(enough)

# %%
smallest = fm.minimal_circuit(capture, " Paris", foil=" Rome", mean=others)
smallest

# %%
smallest.firings.groupby(["token", "layer"]).size().unstack(fill_value=0)

# %% [markdown]
# 104 of 55,296 firings bring 90% of the answer back, each of them needed among these. Most are at " Tower", the end of
# the name, in the first layer, and at " of", where the answer is read off. Without them, nothing of the answer is left.
#
# ## Which memories made which fire?
#
# `fm.circuit` draws the graph of these firings: what made each of them fire, and what each wrote for the answer, down
# to the tokens' embeddings.

# %%
circuit = fm.circuit(capture, smallest, " Paris", foil=" Rome", mean=others)
circuit

# %%
ax = circuit.plot(plt.subplots(figsize=(9, 5.4), layout="constrained")[1], top=16)

# %% [markdown]
# In between, attention carries.
#
# An edge is no estimate. With attention patterns and norm scales as they were, what a neuron reads is a sum over the
# embeddings, the biases and every firing below it; what is not drawn is one source, `rest`, so that the sum stays
# whole:

# %%
first = circuit.firings.iloc[0]
into = circuit.edges[circuit.edges["target"] == first["id"]]
print(f"edges into {first['id']} sum to {into['weight'].sum():.5f}; it read {first['reads']:.5f}")
into.sort_values("share", ascending=False)[["source", "weight", "share"]].head(6).round(3)

# %% [markdown]
# It reads *Eiffel* (position 2) and *Tower* (3) together: the name, not one of its words. `fm.pages.page` writes
# the picture and what each firing read as one page:

# %%
folder = Path(tempfile.mkdtemp())
page = fm.pages.page(circuit, folder / "circuit.html")
print(f"{page.name}: {page.stat().st_size / 1000:,.0f} kB")

# %% [markdown]
# ## Where is it fetched?
#
# What is known at " Tower" must get to " of". Attention from the last token to each other one is cut, in three layers
# at once:

# %%
fact = next(fact for fact in facts if fact.subject == "Eiffel Tower")
ax = fm.plots.fact_map(fm.knockout(model, fact))

# %% [markdown]
# In the last layers, and from the name as a whole: without *Tower* alone the answer stands. In the first ones it is
# the question that is read, all that is not the name.
#
# ## What does an edit do to the graph?
#
# [ROME](04_locating_and_editing_facts.ipynb) changes one layer so that the tower stands in Rome. The same firings are
# drawn again in the edited model.

# %%
edit = fm.rome(model, fact, " Rome")
with edit.applied(model):
    edited = fm.circuit(fm.capture(model, prompt), smallest, " Paris", foil=" Rome")
print(f"layers edited: {list(edit.layers)}; the difference was {circuit.logit:+.2f}, and is {edited.logit:+.2f}")


# %%
def writes(graph):
    """Each firing, with what it adds to the answer with no other firing between."""
    into = graph.edges[graph.edges["target"] == "answer"].set_index("source")["weight"]
    return graph.firings.assign(writes=graph.firings["id"].map(into).fillna(0.0))


columns = ["id", "coefficient", "writes"]
both = pd.merge(writes(circuit), writes(edited)[columns], on="id", suffixes=("", " after"))
both["change"] = both["writes after"] - both["writes"]
most = both.sort_values("change", key=abs, ascending=False)
most[["id", "token", "coefficient", "coefficient after", "writes", "writes after"]].head(8).round(2)

# %%
both.groupby("layer")[["writes", "writes after"]].sum().round(2)

# %% [markdown]
# The neurons of the edited layer fire as they did: nothing below them has changed. What changed is what they write, a
# little each; the name is recognised as before, and now says Rome. Later layers, which were not touched, follow: they
# fire less.
#
# ## The fact in a real model
#
# Asked for *everything* that makes it say Paris, SmolLM2 has no circuit that one could read: some twenty thousand of
# its firings are needed against their means. Against a second prompt the question is smaller:

# %%
fact_found = fm.contrast(real, "The capital of Germany is the city of", "The capital of France is the city of")
print(fact_found.verdict)
fact_found.top(6)[["layer", "neuron", "token", "coefficient", "counterfactual", "exact", "promotes"]].round(2)

# %% [markdown]
# And where it is fetched is as clear as in the small model:

# %%
tower = fm.Fact(subject="Eiffel Tower", prompt="The {} is located in the city of", target_true="Paris")
ax = fm.plots.fact_map(fm.knockout(real, tower))

# %% [markdown]
# Around layers 21 to 26, at "iffel", where [the trace](06_a_real_model.ipynb) had found it. Cutting off the beginning
# of the sequence hurts as much, though nothing was said there: attention that rests on it otherwise must go elsewhere.
#
# ## To try
#
# 1. Another pair: a pronoun ("John said that" / "Mary said that"), a tense, two capitals. How many firings decide, and
#    does `recorded=True`, which keeps them as they were whatever is below, need fewer? *Hint: `len(found.firings)`.*
# 2. Ask `atlas` for another landmark, or without the foil. Which of its 104 firings come back, and are they about the
#    tower, about cities, or about the question? *Hint: compare `smallest.firings[["layer", "neuron"]]` as sets.*
# 3. `fm.circuit(capture, ["3.17", "5.97"], …)` draws firings that you name, at every position. Which position counts?
#    *Hint: the edges whose target is the answer.*
# 4. `fm.circuit(capture, found)` takes the firings of a contrast. How much of the answer do they keep alone? *Hint:
#    `.kept`.*
# 5. Edit with `fm.editing.memit` over several layers instead. Do the first layer's neurons still turn? *Hint: its
#    `layers=`, and the table `both` again.*
# 6. Set the others to zero instead of their mean. Are fewer firings enough then, and for what? *Hint: leave `mean=`
#    out; the result says so.*
