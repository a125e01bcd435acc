"""Every part of ffnmem on one model, against plain arithmetic or Hugging Face; what the manual's table shows."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers.activations import ACT2FN

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning

from ..architectures import DECODERS
from ..helpers import PROMPT, allclose
from ..scanning.texts import tiny_texts

EXACT = 1e-12  # in float64, relative to the largest number
LIMIT = 1.5  # of GPT-OSS at toy size
GATE = {"clamped_swish(1.702, 1.5)": lambda pre: pre.clamp(max=LIMIT) * (1.702 * pre.clamp(max=LIMIT)).sigmoid()}
HUGGING_FACE = 1e-5  # which rounds norms, rotations and softmax to float32 whatever the type
# Asked at the subject's own last token: random attention carries hardly anything from one place to another.
FACT = fm.Fact("Eiffel Tower", "city", "The city of the {}", "Paris", "Rome", id="eiffel")
SOME = [text for text in tiny_texts() if len(text) < 90][:12]
DESCENT = {"steps": 120, "clamp": 40.0, "decay": 0.0, "kl": 0.0, "stop": 0.05}


def hugging_face(network: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return network(input_ids=tokens).logits.double()


class Examined:
    """One architecture loaded from a folder in the hub's layout, in float64, and what was found."""

    def __init__(self, name: str, folder: Path, tokenizer: Any) -> None:
        self.name, self.folder, self.tokenizer = name, folder, tokenizer
        self.hf: Any = DECODERS[name]()
        self.hf.save_pretrained(folder / "hub")
        tokenizer.save_pretrained(folder / "hub")
        self.model = fm.load(folder / "hub", dtype="float64")
        self.captured = fm.capture(self.model, PROMPT, logits=True)
        self.moment = fm.editing.second_moment(self.model, SOME)

    # What several parts use is made by whichever comes first: a worker may begin in the middle.

    @cached_property
    def store(self) -> fm.scanning.Store:
        return fm.scan(self.model, SOME, self.folder / "store", k=3, sample=6, draws=2, frequent=4)

    @cached_property
    def rome(self) -> fm.Edit:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FfnmemWarning)  # a random model is moved by large edits alone
            options: dict[str, Any] = {"contexts": ("{}",), "settings": DESCENT, "force": True}
            return fm.rome(self.model, FACT, layer=0, moment=self.moment, **options)

    @cached_property
    def edited(self) -> fm.prompts.Capture:
        with self.rome.applied(self.model):
            return fm.capture(self.model, FACT.text, logits=True)

    # -- one method a part; each raises AssertionError where something is off -------------------------------------

    def load(self) -> None:
        """The hub's own layout; the logits are Hugging Face's."""
        theirs = hugging_face(copy.deepcopy(self.hf).double(), self.captured.tokens)
        assert allclose(self.captured.logits, theirs, HUGGING_FACE)
        assert self.model.layout.described

    def capture(self) -> None:
        """Coefficients are what the views' keys, gates and activation give for what the FFN reads."""
        for layer, ffn in enumerate(self.model.ffn):
            x = self.captured.ffn_in[layer]
            linear = x @ ffn.keys.T + (0 if ffn.key_bias is None else ffn.key_bias)
            if ffn.gates is None:
                pre, m = linear, ACT2FN[ffn.activation](linear)
            else:
                pre = x @ ffn.gates.T + (0 if ffn.gate_bias is None else ffn.gate_bias)
                if ffn.mixture is not None:
                    factors, form = ffn.mixture.factors(x), ffn.mixture.form
                    if form.clamped:
                        linear = (linear - 1).clamp(-LIMIT, LIMIT) + 1
                    pre, linear = pre * (factors if form.scales_input else factors != 0), linear * factors
                m = (
                    GATE[ffn.activation](pre) * linear
                    if ffn.activation in GATE
                    else ACT2FN[ffn.activation](pre) * linear
                )
                assert allclose(self.captured.linear[layer], linear, EXACT)
            assert allclose(self.captured.pre[layer], pre, EXACT)
            # Bloom has a tanh of its own, with constants of eight digits.
            assert allclose(self.captured.coefficients[layer], m, 1e-7 if self.name == "Bloom" else EXACT)

    def decompose(self) -> None:
        """The shares of all memories and the bias sum to 1, and their writes to the FFN's output."""
        for layer in range(self.model.n_layers):
            found = fm.decompose(self.captured, layer)
            assert found.error < EXACT
            assert abs(found.memories["share"].sum() + found.bias_share - 1) < 1e-10

    def attribute(self) -> None:
        """Components sum to the logit; so do the memories of all positions along the paths through attention."""
        for found in (fm.attribute(self.captured, " Paris", " Rome"), fm.attribute_paths(self.captured, " Paris")):
            assert found.error < EXACT * max(1.0, abs(found.logit))
        cap, logit = self.model.layout.soft_cap, fm.attribute(self.captured, " Paris").logit
        expected = self.captured.logits[0, -1, self.model.token_id(" Paris")]
        assert allclose(logit if cap is None else cap * np.tanh(logit / cap), expected, EXACT)

    def circuit(self) -> None:
        """What all nodes read is the sum of their edges, the rest among them."""
        firings = fm.causal_scores(self.captured, " Paris", " Rome", exact=0).top(20)
        assert fm.circuit(self.captured, firings, " Paris", " Rome").error < EXACT

    def project(self) -> None:
        """The first token of every side is that of a plain product with the norms' gains folded in."""
        model, layer, neuron = self.model, 1, 5
        ffn, final = model.ffn[layer], model.layout.norm(model.layout.final_norm, model.d_model)
        value, before, after = ffn.values[neuron].detach(), model.norm_before(layer), model.norm_after(layer)
        value = (value if after is None else value * after.gain) * model.layout.write_scale
        sides = {"value": (final.centre(value) * final.gain, model.unembedding)}
        for side, keys in (("key", ffn.keys), ("gate", ffn.gates)):
            if keys is not None:
                key = keys[neuron].detach()
                sides[side] = (key if before is None else before.centre(key * before.gain), model.embedding)
        frame = fm.project(model, layer, neuron, k=3).to_frame()
        assert set(frame["side"]) == set(sides)
        for side, (vector, tokens) in sides.items():
            rows = frame[(frame["side"] == side) & (frame["sign"] == "promoted")]
            best = (tokens.detach() @ vector).topk(3)
            assert rows["token_id"].tolist() == best.indices.tolist()
            assert allclose(rows["score"].to_numpy(), best.values, EXACT)

    def scan(self) -> None:
        """A neuron's mean and largest coefficient are those of captures of the same texts, where it is routed to."""
        stats = self.store.stats().set_index(["layer", "neuron"])
        for layer, neuron in ((0, 3), (1, 40)):
            seen = []
            for text in SOME:
                capture = fm.capture(self.model, text)
                m, mixture = capture.coefficients[layer][..., neuron], self.model.ffn[layer].mixture
                factor = torch.ones_like(m) if mixture is None else mixture.factors(capture.ffn_in[layer])[..., neuron]
                seen.append(m[capture.content & (factor != 0)])
            m = torch.cat(seen)
            assert stats.loc[(layer, neuron), "count"] == len(m)
            if len(m):  # else no token went to its expert
                assert allclose(stats.loc[(layer, neuron), "mean"], m.mean(), 1e-5)
                assert allclose(stats.loc[(layer, neuron), "max"], m.max(), 1e-5)

    def polysemanticity(self) -> None:
        """Every neuron asked for gets a verdict and its measures."""
        frame = fm.polysemanticity(self.store, self.model, layers=[1], draws=20).neurons
        assert len(frame) == self.model.ffn[1].d_mlp
        assert frame["verdict"].notna().all()

    def intervene(self) -> None:
        """Without a memory, the FFN's output lacks what it wrote, and nothing is left behind."""
        layer, neuron = 1, 7
        with fm.intervene(self.model, {(layer, neuron): 0.0}):
            without = fm.capture(self.model, PROMPT)
        lacking = self.captured.coefficients[layer][..., neuron : neuron + 1] * self.model.ffn[layer].values[neuron]
        assert allclose(self.captured.ffn_out[layer] - without.ffn_out[layer], lacking, EXACT)
        again = fm.capture(self.model, PROMPT, logits=True)
        assert torch.equal(again.logits, self.captured.logits)

    def trace(self) -> None:
        """Restoring the last state gives the clean answer back; restoring before the noise gives nothing."""
        trace = fm.trace_fact(self.model, PROMPT, "Eiffel Tower", noise=2.0, samples=3)
        state = trace.indirect("state")
        assert allclose(state[-1, -1], trace.total, 1e-6)
        assert (state[:, : trace.subject.start] == 0).all()
        assert allclose(trace.clean, self.captured.logits[0, -1].softmax(-1).max(), 1e-5)

    def edit(self) -> None:
        """The edit brings v* and so the target, and reverting gives every bit of every parameter back."""
        model = self.model
        before = {name: p.detach().clone() for name, p in model.hf_model.named_parameters()}
        edited = self.edited
        clean = fm.capture(model, FACT.text, logits=True)
        chances = [c.logits[0, -1].log_softmax(-1) for c in (clean, edited)]
        rome, paris = (model.token_id(f" {word}") for word in ("Rome", "Paris"))
        assert chances[1][rome] > chances[0][rome]
        assert chances[1][rome] > chances[1][paris]
        (change,) = self.rome.changes
        at = edited.token_strings().index(" Tower")
        written, key = (c[0][0, at] for c in (clean.ffn_out, clean.coefficients))
        assert allclose(edited.ffn_out[0][0, at], written + (key @ change.left.T) @ change.right, 1e-10)
        for name, p in model.hf_model.named_parameters():
            assert torch.equal(p, before[name]), name

    def export(self) -> None:
        """Another program loads the edited model and gets its logits."""
        self.rome.export(self.model, self.folder / "edited")
        again = {"dtype": torch.float64, "experts_implementation": "eager"}  # the others have no float64
        network = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "edited", **again)
        assert allclose(hugging_face(network, self.edited.tokens), self.edited.logits, HUGGING_FACE)


PARTS: dict[str, Callable[[Examined], None]] = {
    name: part for name, part in vars(Examined).items() if inspect.isfunction(part) and not name.startswith("_")
}
"""In the order of the manual's table."""
