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
# ## Which memories made which fire?
#
# Back to `atlas`, and to one prompt. `fm.circuit` begins at the answer, the logit of " Paris" minus that of " Rome",
# and looks into the firings (a neuron at a position) that had most influence on it: what made them fire, and what made
# those fire, down to the embeddings.

# %%
capture = fm.capture(model, prompt)
circuit = fm.circuit(capture, " Paris", foil=" Rome")
circuit

# %%
ax = circuit.plot(plt.subplots(figsize=(9, 5.4), layout="constrained")[1], top=16)

# %% [markdown]
# Two places matter: " Tower", the end of the name, mostly in the first layer, and " of", where the answer is read off,
# mostly in the last. In between, attention carries. One of these memories, 3.17, [has a
# name](03_polysemanticity.ipynb): it fires where the name of a landmark ends.
#
# An edge is no estimate. With attention patterns and norm scales as they were, what a neuron reads is a sum over the
# embeddings, the biases and every firing below it; what was pruned is one node, so that the sum stays whole:

# %%
first = circuit.firings.iloc[0]
into = circuit.edges[circuit.edges["target"] == first["id"]]
print(f"edges into {first['id']} sum to {into['weight'].sum():.5f}; it read {first['pre']:.5f}")
into[["source", "weight", "share"]].head(6).round(3)

# %% [markdown]
# It reads *Eiffel* (position 2) and *Tower* (3) together: the name, not one of its words. `fm.pages.circuit` writes
# all of it as one page to walk around in, with the tokens that memories promote, and with examples where there is a
# scan:

# %%
folder = Path(tempfile.mkdtemp())
page = fm.pages.circuit(circuit, folder / "circuit.html", model=model)
print(f"{page.name}: {page.stat().st_size / 1000:,.0f} kB")

# %% [markdown]
# ## How few are enough?
#
# Influence is not yet proof. Keep some firings, set all others to what they are on average over other facts, and run
# the model: how much of the difference is left? `random` is the same with as many firings drawn at random.

# %%
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
# 83 of 55,296 firings bring 90% of the answer back, each of them needed among these. Nearly all are at " Tower" in the
# first layer, and at " of" in the last: the two places of the graph. They are enough, and yet not all that there is:
# without them, 43% of the answer is left. A model knows a fact more than once.
#
# The graph's own firings are another choice:

# %%
of_graph = fm.faithfulness(capture, " Paris", foil=" Rome", firings=circuit.firings, mean=others)
of_graph.curve[["size", "faithfulness", "completeness", "random"]].round(3)

# %% [markdown]
# They keep a fifth of the answer. The graph shows what was read, whether it pushed towards Paris or away; to choose
# what is enough, take `causal_scores`.
#
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
# [ROME](04_locating_and_editing_facts.ipynb) changes one layer so that the tower stands in Rome. The same question,
# Paris against Rome, is asked of the edited model, and the graph drawn again.

# %%
edit = fm.rome(model, fact, " Rome")
with edit.applied(model):
    edited_capture = fm.capture(model, prompt)
    edited = fm.circuit(edited_capture, " Paris", foil=" Rome")
print(f"layers edited: {list(edit.layers)}; the difference was {circuit.logit:+.2f}, and is {edited.logit:+.2f}")

# %%
fig, axes = plt.subplots(2, 1, figsize=(9, 10), layout="constrained")
for ax, graph, title in zip(axes, (circuit, edited), ("before", "after"), strict=True):
    graph.plot(ax=ax, top=12)
    ax.set_title(title, loc="left")

# %% [markdown]
# The same places. So who changed?

# %%
columns = ["coefficient", "score"]
both = pd.merge(circuit.firings, edited.firings[["id", *columns]], on="id", suffixes=("", " after"))
both["change"] = both["score after"] - both["score"]
most = both.sort_values("change", key=abs, ascending=False)
most[["id", "token", "coefficient", "coefficient after", "score", "score after"]].head(8).round(2)

# %%
by_layer = [graph.firings.groupby("layer")["score"].sum() for graph in (circuit, edited)]
pd.concat(by_layer, axis=1, keys=["before", "after"]).round(2)

# %% [markdown]
# These neurons fire as they did: nothing below them has changed. What changed is what they write, a little each; the
# name is recognised as before, and now says Rome. Later layers, which were not touched, follow: what they add has
# turned its sign, too.
#
# ## The fact in a real model
#
# Asked for *everything* that makes it say Paris, SmolLM2 has no circuit that one could read: some twenty thousand of
# its firings are needed against their means, and a drawn graph leaves nearly all of the influence to what was pruned.
# Against a second prompt the question is smaller:

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
# 2. Ask `atlas` for another landmark, or without the foil. Which of its 83 firings come back, and are they about the
#    tower, about cities, or about the question? *Hint: compare `smallest.firings[["layer", "neuron"]]` as sets.*
# 3. `circuit.merge(other)` joins the graphs of two prompts of one length. What is left of the graph of one? *Hint:
#    another landmark whose name has two tokens.*
# 4. `fm.circuit(..., heads=True)` puts attention heads between. Which one carries " Tower" to " of"? *Hint: `nodes`
#    with `kind == "head"`, by influence.*
# 5. Edit with `fm.editing.memit` over several layers instead. Do the first layer's neurons still turn? *Hint: its
#    `layers=`, and the table `both` again.*
# 6. Set the others to zero instead of their mean. Are fewer firings enough then, and for what? *Hint: leave `mean=`
#    out; the result says so.*
