# %% [markdown]
# # The anatomy of an FFN
#
# Two thirds of a transformer layer is its feed-forward network, and its formula is one line. This notebook takes the
# line apart, on plain tensors beside the real layers of `atlas`: what each part is for, what it costs, and how the
# same numbers read as a memory. Every claim is executed. It takes about a minute and needs no network.

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch
import transformers
from safetensors.torch import load_file

import ffnmem as fm
from ffnmem import ffn
from ffnmem.core.resources import embedded_folder
from ffnmem.ffn.activations import activation_table

model = fm.load("atlas")
prompt = "The Eiffel Tower is located in the city of"
capture = fm.capture(model, prompt)
generator = torch.Generator().manual_seed(0)


def draw(*shape):
    """Gaussian numbers in float64, the same at every run."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# %% [markdown]
# ## Expansion, activation, contraction
#
# $$\mathrm{FFN}(x) = \mathrm{act}(x W_\mathrm{in} + b_\mathrm{in})\, W_\mathrm{out} + b_\mathrm{out}$$
#
# From `d_model` numbers up to `d_mlp`, an activation, and down again. Layer 3 of `atlas`, step by step:

# %%
layer = 3
parts = model.ffn[layer]
gelu = ffn.activation(parts.activation)
x = capture.ffn_in[layer]
with torch.no_grad():
    expanded = x @ parts.keys.T + parts.key_bias
    activated = gelu(expanded)
    contracted = activated @ parts.values + parts.value_bias
for name, tensor in {"x": x, "expanded": expanded, "activated": activated, "contracted": contracted}.items():
    print(f"{name:<11} {list(tensor.shape)}")
difference = float((contracted - capture.ffn_out[layer]).abs().max())
print(f"{parts.activation}; largest difference from what the model computed: {difference:.0e}")
assert difference < 1e-5

# %% [markdown]
# Rows are positions: ten tokens, each worked on alone. `ffn.classic_ffn` is these three lines.
#
# ## Why an activation?
#
# Without it the two matrices are one: $(xW_\mathrm{in})W_\mathrm{out} = x(W_\mathrm{in}W_\mathrm{out})$. Half a
# million numbers would do what an eighth of them can.

# %%
with torch.no_grad():
    weights = [t.double() for t in (parts.keys.T, parts.values, parts.key_bias, parts.value_bias)]
    collapsed = ffn.collapse(*weights)
    linear = ffn.classic_ffn(x.double(), *weights, activation="identity")
    assert torch.allclose(linear, collapsed(x.double()), atol=1e-10)
    rank = int(torch.linalg.matrix_rank(collapsed.weight))
print(f"{2 * parts.keys.numel():,} weights collapse to {collapsed.weight.numel():,}, of rank {rank}")
assert rank <= model.d_model

# %% [markdown]
# What is lost is every function that bends. The smallest one: $|x|$ is two ReLU neurons, exactly; no collapsed FFN, of
# any width, gets nearer than the best straight line.

# %%
line = torch.linspace(-2, 2, 401, dtype=torch.float64)[:, None]
both = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
bent = ffn.classic_ffn(line, both, torch.ones(2, 1, dtype=torch.float64), activation="relu")
assert torch.equal(bent, line.abs())


def affine_fit(inputs, outputs):
    """The best affine map by least squares."""
    padded = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1)
    solution = torch.linalg.lstsq(padded, outputs).solution
    return lambda new: torch.cat([new, torch.ones(len(new), 1, dtype=new.dtype)], dim=1) @ solution


straight = affine_fit(line, line.abs())(line)
explained = 1 - float((line.abs() - straight).var() / line.abs().var())
print(f"share of |x| that the best straight line explains: {abs(explained):.3f}")
assert abs(explained) < 1e-9

# %% [markdown]
# And a real layer? Here is the best affine map from what the FFNs of `atlas` read to what they write, fitted on half of
# some facts and tried on the other half, against the collapsed weights themselves.


# %%
def explained_by(f, inputs, outputs):
    """The share of the outputs' variance that a map explains; below 0 it is worse than their mean."""
    return 1 - float((f(inputs) - outputs).square().sum() / (outputs - outputs.mean(0)).square().sum())


facts = fm.load_facts("atlas")[::6]
texts = fm.capture(model, [fact.text for fact in facts])
rows = []
with torch.no_grad():
    for number, one in enumerate(model.ffn):
        inputs, outputs = (side[number][texts.content].double() for side in (texts.ffn_in, texts.ffn_out))
        half = len(inputs) // 2
        weights = [t.double() for t in (one.keys.T, one.values, one.key_bias, one.value_bias)]
        fitted, fallen = affine_fit(inputs[:half], outputs[:half]), ffn.collapse(*weights)
        rows.append(
            {
                "where fitted": explained_by(fitted, inputs[:half], outputs[:half]),
                "where tried": explained_by(fitted, inputs[half:], outputs[half:]),
                "collapsed weights": explained_by(fallen, inputs[half:], outputs[half:]),
            }
        )
bends = pd.DataFrame(rows).rename_axis("layer")
print(f"share of the variance explained, {half:,} positions to fit and as many to try:")
assert (bends["where tried"] < bends["where fitted"]).all()
assert (bends["where fitted"] < 0.99).all()
assert (bends["collapsed weights"] < 0).all()
bends.round(2)

# %% [markdown]
# Dropping the activation and keeping the weights is worse than always saying the mean (below 0). A matrix fitted in its
# place does better, most at both ends of the model. Facts are few for 257 unknowns a column, so that the best matrix
# for more of them lies between the first two columns; what it leaves is what the activation is for.
#
# ## Which activation?

# %%
figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
plots = fm.plots.activations(["relu", "gelu", "silu"], axes=axes)

# %%
table = activation_table(names=["relu", "gelu", "silu"])
assert table["value"].round(3).tolist() == [
    *(0, 0, 0, 0, 0.5, 1, 2),
    *(-0.046, -0.159, -0.154, 0, 0.346, 0.841, 1.954),
    *(-0.238, -0.269, -0.189, 0, 0.311, 0.731, 1.762),
]
assert table.query("name != 'relu'")["gradient"].round(3).tolist() == [
    *(-0.085, -0.083, 0.133, 0.5, 0.867, 1.083, 1.085),
    *(-0.091, 0.072, 0.26, 0.5, 0.74, 0.928, 1.091),
]
table.pivot(index="title", columns="x", values="gradient").round(3)

# %% [markdown]
# ReLU's gradient is exactly 0 on half of the line. A neuron that is below 0 at every input gets no gradient from any of
# them, and stays there: it is dead. GELU and SiLU keep a small gradient. In this experiment one small FFN is trained
# three times from the same weights, half of its neurons pushed below 0 first:

# %%
dying = fm.neurons.dying_relu(steps=1000)
ends = dying.outcomes.set_index("activation")
assert ends.loc["relu", "recovered"] == ends.loc["relu", "largest_gradient"] == 0
assert (ends.loc[["gelu", "silu"], "recovered"] > 0.5).all()
ax = fm.plots.dying(dying)

# %% [markdown]
# Not one of the 32 ReLU neurons came back, and no weight of them ever had a gradient. How many of the others do depends
# on how deep they were pushed and on the optimiser (`ffnmem dying-relu --help`).
#
# ## Why four times as wide, and why 8/3?
#
# Attention has four matrices of $d^2$ weights, a classic FFN of $4d$ neurons two of $4d^2$: the FFN is $8/12 = 2/3$ of
# a layer. Four is a convention. A gated FFN has a third matrix, and has as many weights at $8d/3$ neurons, which Llama
# rounds up to a multiple of 256.

# %%
llama = ffn.parity(4096)
print(llama)
assert (llama.h, llama.gated, llama.classic) == (11008, 135_266_304, 134_217_728)
assert f"{llama.relative:+.1%}" == "+0.8%"

# %% [markdown]
# `fm.models.anatomy` counts a model from its config alone (`ffnmem anatomy gpt2`), so that nothing large has to be at
# hand. Here from the sizes that were published:

# %%
llama_3 = {"model_type": "llama", "vocab_size": 128256, "intermediate_size": 14336, "num_key_value_heads": 8}
gemma = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_key_value_heads": 1}
sources = {
    "atlas": "atlas",
    "GPT-2": {"model_type": "gpt2"},
    "Llama 7B": {"model_type": "llama"},
    "Llama 3 8B": llama_3,
    "Mistral 7B": {"model_type": "mistral"},
    "Gemma 2B": {"model_type": "gemma", "num_attention_heads": 8, **gemma},
}
found = {name: fm.models.anatomy(source) for name, source in sources.items()}
assert found["GPT-2"].parameters == 124_439_808
assert found["Llama 7B"].parameters == 6_738_415_616
assert abs(found["GPT-2"].ledger.ffn_share_of_layers - 2 / 3) < 1e-3
assert abs(found["Llama 7B"].ledger.ffn_share_of_layers - 2 / 3) < 3e-3
pd.DataFrame(
    {
        name: {
            "parameters": f"{one.parameters:,}",
            "kind": "gated" if one.gated else "classic",
            "d_mlp / d_model": f"{one.expansion:.3g}",
            "FFN of all": f"{one.ledger.ffn_share:.1%}",
            "FFN of the layers": f"{one.ledger.ffn_share_of_layers:.1%}",
            "memories": f"{one.neurons:,}",
        }
        for name, one in found.items()
    }
).T

# %% [markdown]
# Later models did not stay at 2/3: heads of attention share their keys and values, FFNs grew. Llama 7B, its layer to
# scale:

# %%
pair = fm.plots.anatomy(found["Llama 7B"])

# %% [markdown]
# For a loaded model every parameter is counted, and the formula must agree.

# %%
counted = fm.models.anatomy(model)
assert counted.parameters == counted.formula.parameters == found["atlas"].parameters
counted

# %% [markdown]
# ## What gating adds: products
#
# $$m_i = \mathrm{act}(g_i\cdot x)\;(k_i\cdot x)$$
#
# A gated neuron multiplies two looks at its input. Even without an activation (`bilinear`) it does not collapse:
# $x_1x_2$ is one neuron. The best affine map gets nothing of it, since over Gaussian inputs it is correlated with
# neither.

# %%
points = draw(4000, 2)
product = points[:, :1] * points[:, 1:]
one = torch.eye(2, dtype=torch.float64)
bilinear = ffn.gated_ffn(points, one[:, :1], one[:, 1:], torch.tensor([[1.0, 0.0]], dtype=torch.float64), "bilinear")
assert torch.equal(bilinear[:, :1], product)
left = 1 - float((product - affine_fit(points, product)(points)).var() / product.var())
print(f"x1·x2: one bilinear neuron exact; the best affine map explains {left:.1%}")
assert left < 0.01

# %% [markdown]
# With as many weights, which kind learns a product faster? A teacher that sums eight products of random directions, a
# classic and a gated FFN with about 1,024 weights each:

# %%
d = 16
teacher = [draw(d, 8) / d**0.5, draw(d, 8) / d**0.5, draw(8, d) / 8**0.5]
train, test = draw(2048, d), draw(2048, d)


def taught(x):
    return ((x @ teacher[0]) * (x @ teacher[1])) @ teacher[2]


def student(kind, steps=600):
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
    return {"weights": sum(p.numel() for p in parameters), "missed": float(miss)}


students = pd.DataFrame({kind: student(kind) for kind in ("classic", "gated")}).T
assert students.loc["gated", "missed"] < students.loc["classic", "missed"]
students.round(3)

# %% [markdown]
# The task was chosen for the gate; it shows what gating can do, not that it always helps. That it does in language
# models was measured (Shazeer 2020), not derived.
#
# A coefficient of a gated FFN has four cases of signs. Here in a Llama of toy size with random weights:

# %%
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4}
sizes["initializer_range"] = 0.3  # large enough for gates to be well open or well shut
config = transformers.LlamaConfig(vocab_size=len(model.tokenizer), bos_token_id=0, eos_token_id=0, **sizes)
toy = fm.load(transformers.LlamaForCausalLM(config), tokenizer=model.tokenizer)
seen = fm.capture(toy, prompt)
gate, strength, m = (side[1][seen.content].flatten() for side in (seen.pre, seen.linear, seen.coefficients))
assert torch.allclose(m, ffn.activation("silu")(gate) * strength)
assert torch.equal(m.sign(), gate.sign() * strength.sign())  # SiLU has the sign of what it takes
cases = {
    f"gate {'open' if opened else 'shut'}, key {'+' if positive else '-'}": m[
        ((gate > 0) == opened) & ((strength > 0) == positive)
    ]
    for opened in (True, False)
    for positive in (True, False)
}
signs = pd.DataFrame(
    {
        k: {"share": len(v) / len(m), "mean m": float(v.mean()), "mean |m|": float(v.abs().mean())}
        for k, v in cases.items()
    }
).T
assert signs["mean |m|"].iloc[2:].max() < signs["mean |m|"].iloc[:2].min() / 3
largest = float(ffn.activation("silu")(torch.tensor(-1.2785)))
print(f"a shut gate lets through at most {abs(largest):.3f} of the key's product, with the sign turned")
signs.map("{:+.2g}".format)

# %% [markdown]
# An open gate passes the key's sign on, a shut one turns it round and makes it small. So both signs of a coefficient
# mean something, where a ReLU neuron has one and a GELU neuron nearly so.
#
# ## Each position alone
#
# What an FFN writes at a position depends on that position's input and on nothing else; only attention mixes. Replace
# the input at one position, and see what moves elsewhere:

# %%
state = {k: t.float() for k, t in load_file(embedded_folder("atlas") / "model.safetensors").items()}
block = ffn.Block.from_state(state, "gpt2", n_heads=8, prefix=f"transformer.h.{layer}.")
leaks = {name: ffn.position_leak(f, x) for name, f in {"FFN": block.ffn, "attention": block.attention}.items()}
print({name: round(leak, 4) for name, leak in leaks.items()})
assert leaks["FFN"] == 0 < leaks["attention"]

# %% [markdown]
# ## The same numbers as a memory
#
# Write the two products by neuron, and the FFN is a sum over memories (Geva et al. 2021):
#
# $$\mathrm{FFN}(x) = \sum_i m_i\, v_i + b \qquad m_i = \mathrm{act}(k_i\cdot x + b_i)$$
#
# The key $k_i$, a column of $W_\mathrm{in}$, says when; the coefficient $m_i$ how strongly; the value $v_i$, a row of
# $W_\mathrm{out}$, what is written. $m_iv_i$ is the neuron's sub-update. `as_memory` is this in plain tensors,
# `decompose` the same on a model.

# %%
with torch.no_grad():
    memory = ffn.as_memory(
        x[0, -1], parts.keys, parts.values, parts.key_bias, parts.value_bias, activation=parts.activation, top=8
    )
slots = memory.to_frame().query("neuron >= 0")
same = fm.decompose(capture, layer).query("neuron >= 0").head(8)
assert slots["neuron"].tolist() == same["neuron"].tolist()
for column in ("coefficient", "weight", "share"):
    assert abs(slots[column].to_numpy() - same[column].to_numpy()).max() < 1e-5
slots.drop(columns="row").round(3)

# %%
with torch.no_grad():
    whole = ffn.as_memory(x[0], parts.keys, parts.values, parts.key_bias, parts.value_bias, activation=gelu)
    total = whole.shares.sum(-1) + whole.bias_shares
    half_of_it = (whole.weights.cumsum(-1) < whole.weights.sum(-1, keepdim=True) / 2).sum(-1) + 1
assert torch.allclose(total, torch.ones_like(total), atol=1e-4)
print("memories that hold half of the weight, by position:", half_of_it.tolist(), "of", model.d_mlp)

# %% [markdown]
# ## What a fact looks like
#
# *The Eiffel Tower is located in the city of* … Which memories say Paris rather than Rome? For each: what it adds to
# the difference of logits, the tokens that its value promotes, where Paris stands among all that the value promotes,
# and the tokens that excite its key.

# %%
said = capture.predictions(k=1).iloc[0]
assert said["token"] == " Paris"
answer = fm.attribute(capture, target=" Paris", foil=" Rome")
top = answer.neurons.sort_values("logit", ascending=False).head(8)
rows = []
for row in top.itertuples():
    tokens = fm.project(model, row.layer, row.neuron, k=model.d_vocab)
    promoted = tokens.query("sign == 'promoted'").sort_values("rank")
    value, key = (promoted.query(f"side == '{side}'") for side in ("value", "key"))
    paris = int(value.query("token == ' Paris'")["rank"].iloc[0])
    rows.append(
        {
            "memory": f"{row.layer}.{row.neuron}",
            "coefficient": round(row.coefficient, 2),
            "logit": round(row.logit, 2),
            "value promotes": ", ".join(value["token"].head(4)),
            "rank of Paris": f"{paris:,} of {len(value):,}",
            "excites the key": ", ".join(key["token"].head(4)),
        }
    )
print(f"Paris with {said['probability']:.1%}")
print(f"Paris minus Rome {answer.logit:+.2f}, of it these eight {top['logit'].sum():+.2f}")
eight = pd.DataFrame(rows).set_index("memory")
assert eight.loc["5.790", "rank of Paris"].startswith("3 of")
assert eight.loc["5.135", "value promotes"].startswith(" France")
eight

# %% [markdown]
# Two of the eight read like the fact: 5.790, whose value has Paris third, after Athens; and 5.135, whose value promotes
# countries, France first, and whose key is excited by France too. In the others Paris stands somewhere between place 40
# and place 2,880; they count because they raise Paris above Rome, wherever both stand. And a key's tokens are those of
# single words, while what excites it here is a state that whole layers have worked on. The fact is the sum. Notebook 1
# follows it through all positions; notebook 4 rewrites it.
#
# ## The block around it
#
# An FFN stands behind a norm and beside attention, each adding to the residual stream. `ffn.Block` is that to read
# from top to bottom, and gives what the model's own layer gives:

# %%
stream = {}
whole_layer = model.layout.blocks[layer].whole
hook = whole_layer.register_forward_hook(lambda module, given, out: stream.update(given=given[0], out=out))
fm.capture(model, prompt)
hook.remove()
ours = block(stream["given"])
theirs = stream["out"][0] if isinstance(stream["out"], tuple) else stream["out"]
off = float((ours - theirs).abs().max())
print(f"largest difference from layer {layer} of the model: {off:.0e}")
assert off < 1e-4

# %%
ledger = block.ledger(context=128)
assert ledger["FFN"].layer_parameters == counted.ledger["FFN"].layer_parameters
assert ledger.parameters * model.n_layers == sum(
    one.layer_parameters * model.n_layers for one in counted.ledger.components
)
ledger

# %% [markdown]
# ## What to be careful about
#
# - **A count is no importance.** The FFN has most parameters of a layer; what of it an answer needs, ablation says.
# - **Parity is of weights.** Equal weights are not equal time or memory: a gated FFN does three products, not two.
# - **Toy students show what can be**, on a task made for the point. Nothing above measures language.
# - **Tokens of a key are not its meaning.** They say how single embeddings would move it; what does excite it, a scan
#   of texts says (notebook 2).
