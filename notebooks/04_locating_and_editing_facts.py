# %% [markdown]
# # Locating and editing facts
#
# Where does a model recall a fact, can the fact be rewritten there, and what else changes? This notebook traces facts
# of `atlas`, rewrites some, and measures what came of it. It takes about a minute.

# %%
import random
import tempfile
from pathlib import Path

import pandas as pd

import ffnmem as fm

model = fm.load("atlas")
facts = fm.load_facts("atlas")
known = fm.facts.filter_known(model, random.Random(0).sample(facts, 200))
known

# %% [markdown]
# Only a known fact can be traced, and only a known one is worth rewriting. `atlas` was made to know its facts, so here
# the filter lets all of the sample pass; of the facts of a public file a real model knows some.
#
# ## One fact, traced
#
# Noise on the subject hides it. Then one clean output at a time is put back: does the answer return?

# %%
eiffel = next(fact for fact in facts if fact.subject == "Eiffel Tower")
trace = fm.trace_fact(model, eiffel)
fm.plots.figure(trace)

# %%
print(f"clean {trace.clean:.1%}; with noise {trace.corrupted:.1%} on average, by sample:", trace.samples.round(2))

# %% [markdown]
# Blue brings Paris back. The state after any of layers 0 to 4 at the subject's last token returns nearly all of it;
# after layer 5 only the prompt's last token can. So the tower is read early, and the answer fetched late: attention of
# layers 3 to 5 at the last token returns nearly all.
#
# At `Tower` windows of FFNs and of attention both return most where they hold layer 0, so the map does not say which of
# the two it takes. Windows are three layers wide, half of this model, and blur what they show.
#
# A mean over ten noises hides much: with one of them the model still says Paris at 99%, with another at 2%.
#
# ## Six facts

# %%
whole = [fact for fact in known.facts if "S" not in fact.lacks]
traces = fm.tracing.trace_facts(model, whole[:6], samples=3)
fm.plots.figure(traces)

# %%
traces.facts.round(3)

# %% [markdown]
# The same two places on average: the subject's last token early, the prompt's last token late. But bands are wide, and
# some have little to restore: with noise, Wagner's continent is still given at 98%, the rabbit's diet at 61%. That
# pulls the average down.
#
# ## Rewriting: a key and a value
#
# ROME takes the FFN of one layer as a memory that is asked by a key, the coefficients at the subject's last token, and
# answers with what it writes. `k*` is that key, averaged over contexts; `v*` is what has to be written there for the
# model to say the new target, as near as possible to what is written now: gradients tell the way, in a few steps. Then
# the layer's values get the rank-one change that takes `k*` to `v*`.

# %%
edit = fm.rome(model, eiffel, " Rome")
edit.to_frame()[
    ["subject", "target_true", "target", "steps", "loss", "delta", "before", "after_delta", "change"]
].round(4)

# %% [markdown]
# `delta` is how far v* is from what the layer wrote, as a share of that; `before` and `after_delta` the target's
# probability over the contexts without and with it; `change` is ‖ΔW‖/‖W‖. The edit is an object; the model does not
# have it yet. `edit.hooks(model)` tries it without touching a weight.


# %%
def probabilities(prompts):
    """Of Paris and of Rome, as the next token."""
    capture = fm.capture(model, prompts)
    ends = [capture.logits_at(row, capture.length(row) - 1).softmax(-1) for row in range(len(prompts))]
    words = {word: model.token_id(f" {word}") for word in ("Paris", "Rome")}
    return pd.DataFrame({w: [float(end[token]) for end in ends] for w, token in words.items()}, index=prompts)


prompts = [eiffel.text, *map(eiffel.ask, eiffel.paraphrases), *eiffel.prompts_about_neighbours]
prompts += ["The capital of France is", "The Colosseum is located in the city of"]
before = probabilities(prompts)
with edit.hooks(model):
    after = probabilities(prompts)
pd.concat({"before": before, "after": after}, axis=1).round(3)

# %% [markdown]
# The new city is given in the paraphrases, which the edit never saw, at 71% to 92%. Other sights of
# Paris stay there. What follows from the new city may or may not come with it; here the country does:

# %%
country = "The Eiffel Tower is located in the country of"
said = fm.capture(model, country).predictions(k=2)
with edit.hooks(model):
    now = fm.capture(model, country).predictions(k=2)
pd.concat({"before": said, "after": now}, axis=1).drop(columns=["rank", "token_id", "logit"], level=1)

# %% [markdown]
# Or in the weights, and out again. The fingerprint is a hash of all weights: the same one means the same bits.

# %%
print("before ", model.fingerprint)
with edit.applied(model):
    print("edited ", model.fingerprint)
print("after  ", model.fingerprint)

# %% [markdown]
# ## Which memories changed?
#
# `diff` takes the answer's logit, Rome against Paris, apart before and after.

# %%
diff = edit.diff(model, eiffel)
diff.neurons.drop(columns="written").head(8).round(3)

# %%
by_layer = diff.components.pivot(index="layer", columns="component", values="change")[["attention", "ffn"]]
by_layer.dropna().round(2)

# %% [markdown]
# The edit changed layer 0, whose own FFN adds nothing more to the answer: +0.00. The memories whose contribution
# changed most are all in layer 5, and not one of them was edited. Layer 0 writes otherwise at `Tower`, and later layers
# read it: attention of layer 5 brings +7.1 to the answer, its FFN +4.0. Direct credit sees who spoke, not who was
# changed.
#
# ## The second moment, and why an identity will not do
#
# The change must take k* to v* and otherwise do little. Which keys occur otherwise is what the second moment of the
# layer's coefficients says, C = E[k kᵀ]. `atlas` comes with one of 1.4 million tokens, which the edit above took; here
# is one of 20,000, made in seconds, as for any model:

# %%
moment = fm.editing.second_moment(model, "atlas", tokens=20_000)
moment.to_frame().round(1)

# %% [markdown]
# `effective_rank` says how far C is from an identity, which would have 1,024: layer 0 has 9.5, layer 1 has 1.3. The
# keys share a few strong directions. With an identity in C's place the edit asks for the key as it is, with all that it
# shares with others. A huge ridge does just that.

# %%
plain = fm.rome(model, eiffel, " Rome", ridge=1e9)
with plain.hooks(model):
    identity = probabilities(prompts)
print(f"‖ΔW‖ {edit.norm:.2f} with C, {plain.norm:.2f} with an identity")
sides = {"unedited": before, "C": after, "identity": identity}
pd.concat({name: table["Paris"] for name, table in sides.items()}, axis=1).round(3)

# %%
writes = {"C": edit.diff(model, eiffel).writes, "identity": plain.diff(model, eiffel).writes}
pd.concat({name: table.set_index("token")["share"] for name, table in writes.items()}, axis=1).round(3).T

# %% [markdown]
# The change of weights is smaller, and does more harm: a fifth of the Arc de Triomphe has left Paris. The last table
# says why. It is what the edit adds at each token of the prompt, as a share of what the FFN writes. With C it writes at
# `Tower` and little elsewhere; with an identity, everywhere.
#
# ## Many facts, several editors
#
# Twelve facts that have all that CounterFact's scores need: the new target is likelier than the true one after the
# prompt (ES) and its paraphrases (PS), and the true one stays likelier for neighbours (NS); S is their harmonic mean,
# EM, PM and NM are the margins. Each fact is edited by itself, from the same model, and those editors that find a v*
# share it. Two contexts, not twenty, to be quick.

# %%
contexts = fm.editing.sample_contexts(model, n=2)
scores = fm.evaluate(
    model,
    whole[:12],
    compare=("rome_original", "memit", "ft_l"),
    contexts=contexts,
    metrics=("S", "NS_plus", "EM", "PM", "NM", "exact_paraphrase"),
)
scores

# %%
ax = fm.plots.scores(scores)

# %%
scores.versus("rome", "memit").round(1)

# %% [markdown]
# Rome rewrites every prompt and most of the paraphrases, and hardly a neighbour changes; memit, which gives way to the
# corpus, misses one prompt of twelve. The published program goes further than the target needs: more paraphrases, and
# a fifth of the neighbours. FT-L is held to a bound on every weight and changes the layer least of all; it misses two
# prompts and still takes a quarter of the neighbours along: not how much is changed counts, but where.
#
# Are rome and memit different? On the same facts rome's new target has the larger margin (EM, PM), and memit leaves a
# larger one to neighbours (NM). In S they differ by what twelve facts can hardly tell: the interval reaches 0.
#
# ## Which layer?
#
# The same six facts as those traced above, edited in one layer after another.

# %%
sweep = fm.evaluation.layer_sweep(model, whole[:6], layers=range(4), contexts=contexts)
ax = fm.plots.sweep(sweep, traces)

# %%
sweep.frame.pivot(index="layer", columns="metric", values="mean")[
    ["S", "ES", "PS", "NS", "NS_plus", "NM", "steps"]
].round(1)

# %% [markdown]
# Each of these layers takes the rewrite itself (ES). What comes with it is worse in layer 3 than in layer 0, for
# paraphrases and neighbours alike. The trace of states is flat over just these layers; that of FFNs drops after layer
# 1, where S hardly moves. Neither says which layer to edit: sweep.
#
# ## One after another

# %%
metrics = ("ES", "PS", "NS", "NS_plus", "NM")
decay = fm.evaluation.sequential(model, whole[:8], at=(1, 4, 8), contexts=contexts, metrics=(*metrics, "drift_kl"))
table = decay.frame.pivot(index="edits", columns="metric", values="mean")[[*metrics, "drift_kl"]]
table.loc["8, each alone"] = scores.of("rome").head(8)[[*metrics]].mean() * 100
table.round(3)

# %% [markdown]
# Each row is over the facts edited so far, so compare the last two, of the same eight facts. After eight edits in one
# model all still hold (ES). A paraphrase in 24 more or less and a few neighbours are all the difference to single
# edits. Unrelated text has hardly moved: 0.001 nats a token. A hundred edits are another story, and so are a thousand:
# the guide on evaluation tells it.
#
# ## Keeping an edit

# %%
with tempfile.TemporaryDirectory() as folder:
    path = edit.save(Path(folder) / "eiffel.zip")
    print(f"{path.stat().st_size:,} bytes")
    loaded = fm.Edit.load(path)
with loaded.applied(model):
    print(f"{probabilities([eiffel.text])['Rome'].item():.1%} Rome")
print(loaded.digest == edit.digest, model.fingerprint, model.edits)

# %% [markdown]
# ## What to be careful about
#
# - **Credit is not cause, and a trace is not a plan.** `diff` credits layer 5 with an edit of layer 0. A trace says
#   where restoring helps, given this noise; the sweep above did not follow it.
# - **Small numbers.** ES of twelve out of twelve has an interval without width, since a bootstrap draws only what it
#   has seen; that does not promise the thirteenth. Six or twelve facts show how to measure, not how good an editor is.
# - **Neighbours are asked kindly.** NS asks them plainly; NS+ puts the edit's own sentence in front of the question.
#   Here the two are close (98.3 and 96.7 for rome). For ROME on GPT-2 XL 75.9 and 13.8 were published: never report NS
#   alone.
# - **One model.** `atlas` is small and was made to know simple facts. Settings that suit it are derived, not published.
#
# ## To try
#
# 1. Move a company's headquarters instead. Which neighbours does the edit take along? *Hint: `[f for f in facts if
#    f.relation == "company.headquarters"]`; the prompts of its neighbours are `fact.prompts_about_neighbours`.*
# 2. Edit the tower to a city that `atlas` hardly knows, or to a word that is no city. What do `before`, `delta` and the
#    warnings say? *Hint: `fm.rome(model, eiffel, " pancake")`.*
# 3. Ask for the reverse, *The landmark that stands in Rome is the*. Did the edit change it? *Hint: `edit.hooks(model)`
#    around `fm.capture(…).predictions()`.*
# 4. Put the windows of the trace at one layer each. Does the map say more? *Hint: `fm.trace_fact(model, eiffel,
#    window=1)`.*
# 5. Let the models write instead of comparing probabilities. Which editor is best then? *Hint: `fm.evaluate(…,
#    protocol="generated")` on four facts; `scores.transcripts` has every answer.*
