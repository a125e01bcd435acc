# %% [markdown]
# # The anatomy of an FFN
#
# Two thirds of a transformer layer is its feed-forward network, and its formula is one line:
#
# $$\mathrm{FFN}(x) = \mathrm{act}(x W_\mathrm{in} + b_\mathrm{in})\, W_\mathrm{out} + b_\mathrm{out}$$
#
# This notebook takes the line apart, in plain tensors beside the real layers of `atlas`, and asks what the activation
# in the middle is for. It takes about a minute and needs no network.
#
# ## One neuron by hand
#
# *The Eiffel Tower is located in the city of* … One of the 6,144 neurons that had a say in the answer is 5.135.

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch
from einops import rearrange

import ffnmem as fm
from ffnmem import ffn

model = fm.load("atlas")
capture = fm.capture(model, "The Eiffel Tower is located in the city of")
layer, neuron = 5, 135
parts = model.ffn[layer]
gelu = ffn.activation(parts.activation)
x = capture.ffn_in[layer]
with torch.no_grad():
    reads = x[0] @ parts.keys[neuron] + parts.key_bias[neuron]
    coefficients = gelu(reads)
pd.DataFrame({"token": capture.token_strings(), "reads": reads, "coefficient": coefficients}).round(2).T

# %% [markdown]
# At each token the key asks how much of its direction is there (`reads`), and the activation keeps what is above zero.
# It fires where something is about to be said of the tower: at *is*, *located* and *in*, and at *of*, where the answer
# is due. And what does it write when it fires?

# %%
value = fm.project(model, layer, neuron, k=5, side="value").to_frame()
value.pivot(index="rank", columns="sign", values="token")

# %% [markdown]
# Countries, and Paris' own first. That is one memory: *when*, *how strongly*, *what*. No other one reads as plainly
# here ([the first notebook](01_memories_of_a_prompt.ipynb) shows the others); the rest of this one is about all 1,024
# of a layer at once.
#
# ## Expansion, activation, contraction
#
# From `d_model` numbers up to `d_mlp`, an activation, and down again. Rows are positions:

# %%
with torch.no_grad():
    expanded = x @ parts.keys.T + parts.key_bias
    activated = gelu(expanded)
    contracted = activated @ parts.values + parts.value_bias
for name, tensor in {"x": x, "expanded": expanded, "activated": activated, "contracted": contracted}.items():
    print(f"{name:<11} {list(tensor.shape)}")
difference = float((contracted - capture.ffn_out[layer]).abs().max())
print(f"{parts.activation}; largest difference from what the model computed: {difference:.0e}")

# %% [markdown]
# `ffn.classic_ffn` is these three lines. Read by neuron instead of by matrix they are a sum, one term a memory, which
# `fm.decompose` lists: the products of coefficients and values, and the bias, give the same output. The share of each
# is how much of the output's direction it wrote.

# %%
found = fm.decompose(capture, layer)
weights = found.memories["weight"].cumsum()
half = int((weights < weights.iloc[-1] / 2).sum()) + 1
whole = found.memories["share"].sum() + found.bias_share
print(f"shares sum to {whole:.4f}; {half} of {model.d_mlp:,} memories have half of the weight")

# %% [markdown]
# ## Each position alone
#
# What an FFN writes at a position depends on that position's input and on nothing else; only attention mixes. The
# input at one position is replaced by noise, position by position: how far does the output move anywhere else?

# %%
matrices = (parts.keys.T, parts.values, parts.key_bias, parts.value_bias)


def position_leak(f, x):
    """The largest change of an output at any other position, each position's input replaced in turn."""
    generator, before, largest = torch.Generator().manual_seed(0), f(x), 0.0
    for place in range(x.shape[-2]):
        changed = x.clone()
        changed[..., place, :] = torch.randn(x.shape[-1], generator=generator) * x.std()
        moved = (f(changed) - before).abs()
        moved[..., place, :] = 0
        largest = max(largest, float(moved.max()))
    return largest


with torch.no_grad():
    print("FFN", position_leak(lambda x: ffn.classic_ffn(x, *matrices, activation=gelu), x))

# %% [markdown]
# Zero, exactly. So a memory can be asked about one token at a time, and whatever it knows of the tokens before was
# brought there by attention.
#
# ## Why an activation?
#
# Without it the two matrices are one: $(xW_\mathrm{in})W_\mathrm{out} = x(W_\mathrm{in}W_\mathrm{out})$. Half a
# million numbers would do what an eighth of them can.


# %%
def collapse(w_in, w_out, b_in, b_out):
    """What is left of a classic FFN without its activation: a matrix, and the affine map x(W_in W_out) + …"""
    weight, bias = w_in @ w_out, b_in @ w_out + b_out
    return weight, lambda x: x @ weight + bias


exact = [tensor.detach().double() for tensor in matrices]
weight, collapsed = collapse(*exact)
linear = ffn.classic_ffn(x.double(), *exact, activation="identity")
rank = int(torch.linalg.matrix_rank(weight))
print(f"{2 * parts.keys.numel():,} weights collapse to {weight.numel():,}, of rank {rank}")
print(f"largest difference without the activation: {float((linear - collapsed(x.double())).abs().max()):.0e}")

# %% [markdown]
# What is lost is every function that bends. The smallest one, $|x|$, is two ReLU neurons, one for each side:

# %%
line = torch.linspace(-2, 2, 401, dtype=torch.float64)[:, None]
both = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
bent = ffn.classic_ffn(line, both, torch.ones(2, 1, dtype=torch.float64), activation="relu")


def affine_fit(inputs, outputs):
    """The best affine map by least squares."""
    padded = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1)
    solution = torch.linalg.lstsq(padded, outputs).solution
    return lambda new: torch.cat([new, torch.ones(len(new), 1, dtype=new.dtype)], dim=1) @ solution


def explained_by(f, inputs, outputs):
    """The share of the outputs' variance that a map explains; below 0 it is worse than their mean."""
    return 1 - float((f(inputs) - outputs).square().sum() / (outputs - outputs.mean(0)).square().sum())


straight = affine_fit(line, line.abs())
print(f"two ReLU neurons miss |x| by {float((bent - line.abs()).abs().max()):.0f};", end=" ")
print(f"the best straight line explains {abs(explained_by(straight, line, line.abs())):.3f} of it")

# %% [markdown]
# And a real layer? Here is the best affine map from what the FFNs of `atlas` read to what they write, fitted on half of
# some facts and tried on the other half, against the layer's own weights without their activation.

# %%
texts = fm.capture(model, [fact.text for fact in fm.load_facts("atlas")[::6]])
rows = []
for number, one in enumerate(model.ffn):
    inputs, outputs = (side[number][texts.content].detach().double() for side in (texts.ffn_in, texts.ffn_out))
    half = len(inputs) // 2
    own = [tensor.detach().double() for tensor in (one.keys.T, one.values, one.key_bias, one.value_bias)]
    fitted, (_, fallen) = affine_fit(inputs[:half], outputs[:half]), collapse(*own)
    rows.append(
        {
            "where fitted": explained_by(fitted, inputs[:half], outputs[:half]),
            "where tried": explained_by(fitted, inputs[half:], outputs[half:]),
            "collapsed weights": explained_by(fallen, inputs[half:], outputs[half:]),
        }
    )
print(f"share of the variance explained, {half:,} positions to fit and as many to try:")
pd.DataFrame(rows).rename_axis("layer").round(2)

# %% [markdown]
# Dropping the activation and keeping the weights is worse than always saying the mean (below 0). A matrix fitted in its
# place does better, most at both ends of the model. Facts are few for 257 unknowns a column, so that the best matrix
# for more of them lies between the first two columns; what it leaves is what the activation is for.
#
# ## Which activation?

# %%
figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
for ax, gradient in zip(axes, (False, True), strict=True):
    fm.plots.activations(["relu", "gelu", "silu"], ax=ax, gradient=gradient)

# %% [markdown]
# The curves are nearly the same; their gradients are not. ReLU's is exactly 0 on half of the line. A neuron that is
# below 0 at every input gets no gradient from any of them, and stays there: it is *dead*. GELU and SiLU keep a small
# gradient. In this experiment one small FFN (8 → 64 → 8) learns what a random teacher with tanh does, from the same
# weights each time. First half of its neurons are pushed so far down that the highest pre-activation over all inputs is
# `depth` standard deviations below 0, which is what one step that was too long leaves behind:


# %%
def train_pushed(name, seed=0, depth=0.5, optimiser=torch.optim.Adam, rate=1e-3, steps=2000):
    """By step, the share of the pushed neurons that fires for no input, and the largest gradient of a dead neuron."""
    generator = torch.Generator().manual_seed(seed)
    inputs, teacher, shift = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((256, 8), (8, 64), (64,))
    )
    readout, keys, values = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[0] ** 0.5
        for shape in ((64, 8), (8, 64), (64, 8))
    )
    targets = torch.tanh(inputs @ teacher / 8**0.5 + shift / 2) @ readout
    bias, offset = torch.zeros(64, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    pre = inputs @ keys
    bias[:32] = -(pre.amax(0) + depth * pre.std(0))[:32]
    parameters = [tensor.requires_grad_() for tensor in (keys, bias, values, offset)]
    trainer, act, rows = optimiser(parameters, lr=rate), ffn.activation(name), []
    for step in range(steps + 1):
        pre = inputs @ keys + bias
        loss = (act(pre) @ values + offset - targets).square().mean()
        trainer.zero_grad()
        loss.backward()
        dead = (pre <= 0).all(0)
        gradients = (keys.grad[:, dead], bias.grad[dead], values.grad[dead])
        largest = max((float(part.abs().max()) for part in gradients if part.numel()), default=0.0)
        rows.append({"step": step, "dead": float(dead[:32].double().mean()), "gradient": largest})
        trainer.step()
    return pd.DataFrame(rows).set_index("step")


runs = {name: train_pushed(name) for name in ("relu", "gelu", "silu")}
dead = pd.DataFrame({name: run["dead"] for name, run in runs.items()})
ax = dead.plot(ylim=(-0.03, 1.03), ylabel="pushed neurons that fire for no input")

# %%
pd.DataFrame(
    {name: {"came back": 1 - run["dead"].iloc[-1], "largest gradient of a dead neuron": run["gradient"].max()}
     for name, run in runs.items()}
).T.round(3)  # fmt: skip

# %%
assert runs["relu"]["gradient"].max() == 0  # of a dead ReLU neuron, at every step
sgd = {"optimiser": torch.optim.SGD, "rate": 0.1}
ways = {"relu": {}, "gelu": {}, "silu": {}, "gelu, 4 deep": {"depth": 4.0}, "gelu, SGD": sgd}
back = {
    way: [1 - train_pushed(way[:4], seed, **options)["dead"].iloc[-1] for seed in range(5)]
    for way, options in ways.items()
}
pd.DataFrame(back).mean().rename("came back, mean of five seeds").round(2)

# %% [markdown]
# Not one of the ReLU neurons came back, and no weight of them ever had a gradient. How many of the others do depends on
# how deep they were pushed and on the optimiser: Adam divides a gradient by its size and so makes much of a small one,
# plain gradient descent does not. A GELU neuron that does not come back is no loss as a dead ReLU neuron is: its small
# negative coefficients still vary and learn (Lu et al. 2019; Maas et al. 2013). Later models multiply two such looks
# at the input instead of taking one: [what gates add](08_what_gates_add.ipynb).
#
# ## The layer around it
#
# An FFN reads the residual stream behind attention, through a norm, and adds to it what it writes. A whole layer of
# GPT-2 in plain tensors:


# %%
def norm(x, module):
    """LayerNorm: (x − mean) / σ, times a gain, plus a bias."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias


def attention(x, module, n_heads):
    """Causal attention: softmax(qkᵀ / √d_head) v of each head, then the output projection."""
    joint = x @ module.c_attn.weight + module.c_attn.bias
    q, k, v = rearrange(joint, "pos (part head d) -> part head pos d", part=3, head=n_heads)
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    mixed = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
    return rearrange(mixed, "head pos d -> pos (head d)") @ module.c_proj.weight + module.c_proj.bias


def block(x, layer, n_heads):
    """The residual stream behind a pre-norm layer."""
    x = x + attention(norm(x, layer.ln_1), layer.attn, n_heads)
    up, down = layer.mlp.c_fc, layer.mlp.c_proj
    return x + ffn.classic_ffn(norm(x, layer.ln_2), up.weight, down.weight, up.bias, down.bias, gelu)


network = fm.load("atlas", dtype=torch.float64).hf_model
with torch.no_grad():
    stream = network(capture.tokens, output_hidden_states=True).hidden_states
    layers = network.transformer.h[:-1]  # behind the last one transformers shows the stream through the final norm
    off = [
        float((block(before[0], layer, network.config.n_head) - after[0]).abs().max())
        for layer, before, after in zip(layers, stream[:-2], stream[1:-1], strict=True)
    ]
assert max(off) < 1e-10
print(f"largest difference from transformers' own {len(off)} layers, in float64: {max(off):.0e}")

# %% [markdown]
# What FFNs take of a layer's parameters, `fm.models.anatomy` counts:

# %%
counts = fm.models.anatomy("atlas").components.set_index("component")
in_layers = counts["layer_parameters"]
print(f"{in_layers['FFN'] / in_layers.sum():.1%} of the layers, {counts['share']['FFN']:.1%} of the whole model")

# %% [markdown]
# ## To try
#
# 1. Take another neuron that fires at the end of the prompt. How soon does one come whose value you can read? *Hint:
#    `fm.attribute(capture, " Paris").top(20)` lists candidates, `fm.project` reads them.*
# 2. Where does the best affine map do better, at the subject's last token or at the end of the prompt? *Hint: choose
#    rows of `texts.ffn_in[layer]` by position instead of `texts.content`; facts have different lengths.*
# 3. Replace `gelu` by ReLU in all layers of the arithmetic above, one layer at a time. How much of the output's
#    variance is left? *Hint: `ffn.classic_ffn(..., activation="relu")` and `explained_by`.*
# 4. Push neurons less deep. When do all GELU neurons come back? *Hint: `train_pushed("gelu", depth=…)`.*
# 5. Draw ten random directions in place of the key of 5.135. Do they fire behind the name and not at it, too? *Hint:
#    `torch.randn` with the key's norm, then `x[0] @ direction`.*
