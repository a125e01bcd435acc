# %% [markdown]
# # Geva 2021: FFNs as key-value memories
#
# Geva, Schuster, Berant and Levy, *Transformer Feed-Forward Layers Are Key-Value Memories*
# ([2012.14913](https://arxiv.org/abs/2012.14913)), looked at a model of 16 layers with 4,096 ReLU neurons each. A
# neuron's *key* responds to patterns of text, its *value* predicts the next token, and a layer composes the memories
# that are active. Do the same measures find that in `atlas`, with 6 layers of 1,024 GELU neurons, and in SmolLM2?
# About a minute, and half a minute more with SmolLM2.

# %%
import random

import matplotlib.pyplot as plt
import pandas as pd
import torch

import ffnmem as fm

documents = [document.text for document in fm.corpus.open_corpus("atlas")]
texts = random.Random(0).sample([text for text in documents if len(text) < 350], 800)
model = fm.load("atlas")

# %% [markdown]
# ## One pass over text
#
# All measures come from one pass. In every document it notes where each key has its largest coefficient: these are the
# *trigger examples* of the key. At one random position of each it notes what every layer predicts: the residual stream
# before and after the FFN (through the logit lens), and what the FFN wrote, which the paper projects as $v \cdot E$.


# %%
def top_token(model, vectors):
    return (vectors @ model.unembedding.T).argmax(-1)


@torch.no_grad()
def read(model, texts, layers, batch=16, seed=0):
    """By layer, trigger examples of all keys, and predictions at a random position of each document."""
    rng, found = random.Random(seed), {layer: [] for layer in layers}
    values = {layer: top_token(model, model.ffn[layer].values) for layer in layers}
    for start in range(0, len(texts), batch):
        run = fm.capture(model, texts[start : start + batch])
        # Positions that another token follows.
        content = run.content.scatter(1, run.mask.sum(1, keepdim=True) - 1, False)
        rows = torch.arange(len(content))
        at = torch.tensor([rng.choice(row.nonzero().flatten().tolist()) for row in content])
        answer = model.logit_lens(run.residual.final_in[rows, at]).argmax(-1)
        for layer in layers:
            m = run.coefficients[layer]
            best, where = m.masked_fill(~content.unsqueeze(-1), -torch.inf).max(dim=1)
            after, wrote = (run[f"blocks.{layer}.hook_{name}"][rows, at] for name in ("resid_post", "mlp_out"))
            before, active, ffn = model.logit_lens(after - wrote), m[rows, at] > 0, top_token(model, wrote)
            agrees, elsewhere = (values[layer] == tokens.unsqueeze(-1) for tokens in (ffn, ffn.roll(1)))
            part = {
                "best": best, "where": where, "follows": run.tokens.gather(1, where + 1),
                "active": active.float().mean(1), "any value": agrees.any(1),
                "active value": (agrees & active).any(1), "by chance": (elsewhere & active).any(1),
                "ffn": ffn, "before": before.argmax(-1), "after": model.logit_lens(after).argmax(-1), "answer": answer,
            }  # fmt: skip
            found[layer].append(part)
    return {layer: {name: torch.cat([p[name] for p in parts]) for name in parts[0]} for layer, parts in found.items()}


found = read(model, texts, range(model.n_layers))
tokens = [model.tokenize(text) for text in texts]

# %% [markdown]
# ## Keys respond to patterns
#
# The strongest trigger examples of three keys, up to the token at which they are strongest. In the paper people name
# the patterns of 160 keys: shallow ones in lower layers, topics in upper ones. Here: *would you* and *could you*; in
# three of four, a question after some things changed hands; and where *table* comes next.


# %%
def triggers(layer, neuron, k=4):
    best, documents = found[layer]["best"][:, neuron].topk(k)
    ends = [tokens[d][: int(found[layer]["where"][d, neuron]) + 1] for d in documents.tolist()]
    prefixes = ["".join(model.token_strings(ids[-12:])) for ids in ends]
    return pd.DataFrame({"key": f"{layer}.{neuron}", "coefficient": best.tolist(), "prefix": prefixes})


pd.set_option("display.max_colwidth", 90)
pd.concat([triggers(0, 429), triggers(2, 941), triggers(5, 723)], ignore_index=True).round(2)

# %% [markdown]
# What in a prefix matters? Remove its last, a random or its first token and run it again (the paper: 50 prefixes of 100
# keys a layer; here 3 of 32). The table has the mean relative change of the coefficient.


# %%
def without(layer, keys=32, prefixes=3, least=4):
    rng, wholes, neurons = random.Random(layer), [], []
    for neuron in rng.sample(range(model.d_mlp), keys):
        best, documents = found[layer]["best"][:, neuron].topk(3 * prefixes)
        ends = [(d, int(found[layer]["where"][d, neuron])) for d in documents[best > 0].tolist()]
        some = [tokens[d][: end + 1] for d, end in ends if end >= least][:prefixes]
        wholes, neurons = wholes + some, neurons + [neuron] * len(some)
    inside = [rng.randrange(2, len(ids) - 1) for ids in wholes]
    shorter = {
        "last": [ids[:-1] for ids in wholes],
        "random": [ids[:i] + ids[i + 1 :] for ids, i in zip(wholes, inside, strict=True)],
        "first": [ids[:1] + ids[2:] for ids in wholes],  # the beginning-of-sequence token stays
    }

    def at_the_end(rows):
        longest = max(map(len, rows))
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids in rows])  # nobody sees what comes later
        m = fm.capture(model, padded, layers=[layer]).coefficients[layer]
        return m[torch.arange(len(rows)), torch.tensor([len(ids) - 1 for ids in rows]), torch.tensor(neurons)]

    whole = at_the_end(wholes)
    return {name: float((at_the_end(rows) / whole - 1).mean()) for name, rows in shorter.items()}


changes = 100 * pd.DataFrame([without(layer) for layer in range(model.n_layers)]).rename_axis("layer")
changes.round(0).astype(int)

# %% [markdown]
# ## Values predict what follows, and layers compose
#
# - *agreement*: the value's top token is the one that follows its key's strongest trigger example; *by chance*: the one
#   that follows another key's.
# - *active*: memories with a coefficient above 0. *zero agreement*: no value of the layer has the top token of what the
#   layer wrote; *of active*: no active memory's has; *elsewhere*: none has what the layer wrote in another document.
# - *answer*: the stream before the FFN predicts the model's own answer.
# - After the FFN, the prediction is that of the *residual* before it, of the *ffn*, of *both*, or a new one
#   (*composed*).


# %%
def layers(model, found):
    table = {}
    for layer, at in found.items():
        value = top_token(model, model.ffn[layer].values)
        follows = at["follows"].gather(0, at["best"].argmax(0, keepdim=True))[0]
        kept, wrote = at["after"] == at["before"], at["after"] == at["ffn"]
        measured = {
            "agreement": value == follows, "by chance": value == follows.roll(1), "active": at["active"],
            "zero agreement": ~at["any value"], "of active": ~at["active value"], "elsewhere": ~at["by chance"],
            "answer": at["before"] == at["answer"], "residual": kept & ~wrote, "both": kept & wrote,
            "composed": ~kept & ~wrote, "ffn": ~kept & wrote,
        }  # fmt: skip
        table[layer] = {name: 100 * float(values.float().mean()) for name, values in measured.items()}
    return pd.DataFrame(table).T.rename_axis("layer")


atlas = layers(model, found)
atlas.round(1)

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
changes.plot(ax=left, marker="o", title="Without a token, a coefficient changes by", ylabel="%")
atlas[["agreement", "by chance"]].plot(
    ax=middle, marker="o", title="The value predicts what follows", ylabel="% of keys"
)
parts = atlas[["residual", "both", "composed", "ffn"]]
parts.plot.bar(ax=right, stacked=True, rot=0, title="Whose prediction stands after the FFN", ylabel="% of positions")
right.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## Beside the paper, and SmolLM2
#
# SmolLM2 (`ffnmem get smollm2`, once) has 30 layers of gated neurons. Six of them, over 60 documents, are a look and no
# measurement. The paper counts its layers from 1, here they count from 0.

# %%
try:
    real = fm.load("smollm2")
    others = {"SmolLM2": layers(real, read(real, texts[:60], [0, 6, 12, 18, 24, 29], batch=10))}
except fm.FfnmemError as missing:
    others = {}
    print(f"SmolLM2 is left out: {missing}")
paper = {
    "last": "-65% in layer 1 to -20% in layer 16", "random": "-10% to -20%", "first": "-10% to -20%",
    "agreement": "near 0 in layers 1 to 10, then up to 3.5%", "active": "10% to 50%",
    "zero agreement": "68% or more in every layer", "answer": "a third in the lowest layers, more from layer 10 on",
    "residual": "most positions", "composed": "most of the others", "ffn": "rarely",
}  # fmt: skip
beside = pd.DataFrame({"the paper": paper})
for name, table in {"atlas": changes.join(atlas), **others}.items():
    beside[f"{name}, % by layer"] = [
        " ".join(f"{x:.0f}" for x in table.get(row, [])) or "not measured" for row in paper
    ]
beside

# %% [markdown]
# As in the paper, the last token matters most, upper layers' values predict what follows their triggers, and the
# answer is refined from layer to layer. Unlike there, the upper layers of `atlas` depend on the last token as much as
# lower ones do, and layers often predict what one of their values predicts. But look at *elsewhere*: a lower layer
# predicts so few tokens that the active memories of another document would agree nearly as often. Half of SmolLM2's
# memories are active anywhere, since the coefficients of gated neurons have both signs.
#
# ## To try
#
# 1. Which pattern has a key of your choice? *Hint: `triggers(layer, neuron, k=20)`.*
# 2. Is the agreement of layer 5 that of rare or of frequent tokens? *Hint: count `follows[value == follows]`.*
# 3. Do `fm.project`'s top tokens, with the final norm's gain folded in, agree as often with what follows?
# 4. How many of the largest memories make half of a layer's output? *Hint: `fm.decompose` lists them.*
