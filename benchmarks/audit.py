"""How often an audit of two checkpoints names a planted edit right: layer, matrix, rank and new answers.

Edits of one to four facts are made by ROME and MEMIT in the embedded model, and of one by hand (C⁻¹k with a C of
text that the audit does not see, and a value along the target's unembedding) in it and in a random gated Llama. LoRA
adapters of random A and B, merged by PEFT, are for no fact. Two checkpoints of three are stored in bfloat16 or float16.
An edit is named right where its matrices and ranks are, and the first token of each target is the one that gained most
after the fact's prompt (by hand: among the first three that the part promotes). Printed besides: how much of what the
layer writes moved at the subjects of an edit's facts, and at others. ``--trained``: LoRA trained on facts: of these
only matrix and rank count.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from typing import Any

import torch
from common import machine
from transformers import LlamaConfig, LlamaForCausalLM

import ffnmem as fm
from ffnmem.editing import Audit, Edit, EditedLayer, audit
from ffnmem.facts.answers import word_ids
from ffnmem.facts.questions import ask_about

ASKED = 60  # facts about as many subjects, those of the edit among them
STORED = (torch.float32, torch.bfloat16, torch.float16)


def random_llama(tokenizer: Any) -> fm.Model:
    """A gated model of random weights, large enough for its neurons to differ."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=128, initializer_range=0.2)
    return fm.load(LlamaForCausalLM(config).eval(), tokenizer=tokenizer)


class Planter:
    """Makes checkpoints of a model with a known change."""

    def __init__(self, model: fm.Model, facts: list[fm.Fact], seed: int) -> None:
        self.model, self.facts, self.draw = model, facts, random.Random(seed)
        texts = [fact.text for fact in self.draw.sample(facts, 300)]
        taken = fm.capture(model, texts)
        self.text = {layer: m[taken.content].double() for layer, m in taken.coefficients.items()}

    def some(self, count: int) -> list[fm.Fact]:
        """Facts of as many subjects."""
        found: dict[str, fm.Fact] = {}
        while len(found) < count:
            fact = self.draw.choice(self.facts)
            found[fact.subject] = fact
        return list(found.values())

    def key(self, fact: fm.Fact, layer: int) -> torch.Tensor:
        asked = ask_about(self.model, fact.prompt, fact.subject)
        return fm.capture(self.model, list(asked.tokens)).coefficients[layer][0, asked.subject_last].double()

    def by_hand(self, fact: fm.Fact) -> Edit:
        """W + v (C⁻¹k)ᵀ/kᵀC⁻¹k, v along the target's unembedding and four times as long as what is written there."""
        layer = self.draw.randrange(1, self.model.n_layers)
        c = self.text[layer].T @ self.text[layer] / len(self.text[layer])
        c += 0.05 * c.diagonal().mean() * torch.eye(len(c), dtype=c.dtype)
        key = self.key(fact, layer)
        left = torch.linalg.solve(c, key)
        value = self.model.unembedding.detach()[word_ids(self.model, fact.text, str(fact.target_new))[0]].double()
        value *= 4 * (key @ self.model.ffn[layer].values.detach().double()).norm() / value.norm()
        change = EditedLayer(layer, (left / (left @ key)).unsqueeze(0), value.unsqueeze(0))
        return Edit.of(self.model, [change], method="by hand")

    def lora(self, facts: list[fm.Fact] | None = None) -> tuple[fm.Model, tuple[int, str], int]:
        """A model with an adapter merged, random or trained on facts; where, and its rank."""
        from peft import LoraConfig, get_peft_model

        layer, rank = self.draw.randrange(self.model.n_layers), self.draw.choice((1, 2, 4, 8))
        matrix = "FFN down" if facts else self.draw.choice(("FFN down", "FFN up", "attention out"))
        block = self.model.layout.blocks[layer]
        output = next(name for name in ("o_proj", "c_proj") if hasattr(block.attention, name))
        module = {"FFN down": block.project_out, "FFN up": block.project_in}.get(
            matrix, getattr(block.attention, output)
        )
        network = fm.load(self.model.hf_model, tokenizer=self.model.tokenizer).hf_model
        name = next(name for name, one in self.model.hf_model.named_modules() if one is module)
        torch.manual_seed(self.draw.randrange(1000))
        config = LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            target_modules=[name],
            init_lora_weights=bool(facts),
            fan_in_fan_out=not isinstance(module, torch.nn.Linear),
        )
        adapted = get_peft_model(network, config)
        if facts:
            train(adapted, self.model, facts)
        merged = fm.load(adapted.merge_and_unload(), tokenizer=self.model.tokenizer)
        return merged, (layer, "FFN in" if matrix == "FFN up" and not self.model.gated else matrix), rank


def train(adapted: Any, model: fm.Model, facts: list[fm.Fact]) -> None:
    """Let an adapted network say facts' new targets."""
    rows = [(model.tokenize(fact.text), word_ids(model, fact.text, str(fact.target_new))) for fact in facts]
    optimiser = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=5e-3)
    for _ in range(40):
        optimiser.zero_grad()
        for prompt, target in rows:
            logits = adapted(input_ids=torch.tensor([[*prompt, *target[:-1]]])).logits[0, len(prompt) - 1 :]
            torch.nn.functional.cross_entropy(logits, torch.tensor(target)).backward()
        optimiser.step()


def make_edit(planter: Planter, kind: str, facts: list[fm.Fact]) -> Any:
    """An edit of some facts, made in some way."""
    if kind == "by hand":
        return planter.by_hand(facts[0])
    if kind == "rome":
        return fm.rome(planter.model, facts[0])
    return fm.editing.memit(planter.model, facts, **({"layer": 3, "layers": 2} if "2 layers" in kind else {}))


def store(model: fm.Model, kind: torch.dtype) -> fm.Model:
    """A checkpoint as it is after it was stored in a numeric type."""
    network = fm.load(model.hf_model, tokenizer=model.tokenizer).hf_model
    return fm.load(network.to(kind).float(), tokenizer=model.tokenizer)


def is_right(
    found: Audit, places: dict[tuple[int, str], int], facts: list[fm.Fact], model: fm.Model, kind: str
) -> bool:
    """Whether an audit says what was planted."""
    ranks = {(row.layer, row.matrix): row.rank for row in found.matrices.itertuples()}
    if kind == "trained LoRA":
        return ranks == places
    assert found.facts is not None
    said = {(row.prompt, row.raised) for row in found.facts.itertuples()}
    if kind == "by hand":
        said |= {(facts[0].text, token) for token in found.parts["promotes"][0][:3]}
    first = [word_ids(model, fact.text, str(fact.target_new))[0] for fact in facts]
    wanted = {(fact.text, token) for fact, token in zip(facts, model.token_strings(first), strict=True)}
    return ranks == places and wanted <= said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--trained", type=int, default=0, help="so many LoRA trained on facts as well")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine())
    atlas = fm.load("atlas")
    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new]
    models = {"atlas": atlas, "random Llama": random_llama(atlas.tokenizer)}
    planters = {name: Planter(model, facts, args.seed) for name, model in models.items()}
    kinds = [(name, kind) for kind in ("by hand", "LoRA") for name in models]
    kinds = [("atlas", kind) for kind in ("rome", "memit")] + kinds + [("atlas", "memit, 2 layers")]
    done = [kinds[i % len(kinds)] for i in range(args.cases)] + [("atlas", "trained LoRA")] * args.trained
    right: dict[tuple[str, str], list[bool]] = {}
    named, beside = [], []
    began = time.perf_counter()
    for i, (name, kind) in enumerate(done):
        planter, model = planters[name], models[name]
        wanted = [] if kind == "LoRA" else planter.some(1 if kind in ("rome", "by hand") else 1 + i % 4)
        if "LoRA" in kind:
            changed, place, rank = planter.lora(wanted or None)
            places = {place: rank}
        else:
            edit = make_edit(planter, kind, wanted)
            places = {(layer, "FFN down"): len(wanted) for layer in edit.layers}
            with edit.applied(model):
                changed = fm.load(model.hf_model, tokenizer=model.tokenizer)
        found = audit(model, store(changed, STORED[i % 3]), wanted + planter.some(ASKED - len(wanted)))
        right.setdefault((name, kind), []).append(is_right(found, places, wanted, model, kind))
        assert found.facts is not None
        if "LoRA" not in kind:
            edited = found.facts["subject"].isin([fact.subject for fact in wanted])
            named += found.facts["moved"][edited].tolist()
            beside += found.facts["moved"][~edited].tolist()
        if not right[name, kind][-1]:
            print("wrong:", name, kind, places, [fact.subject for fact in wanted], "found", found.verdict)
    for (name, kind), found_right in sorted(right.items()):
        print(f"{kind} in {name}: {sum(found_right)} of {len(found_right)}")
    counted = [one for (_, kind), some in right.items() if kind != "trained LoRA" for one in some]
    print(f"named right: {sum(counted)} of {len(counted)}, in {time.perf_counter() - began:.0f} s")
    low, high = torch.tensor(named), torch.tensor(beside)
    print(f"moved at an edit's subjects: half from {low.median():.1%}, 5% below {low.quantile(0.05):.1%}")
    print(f"moved at others: half from {high.median():.1%}, 5% above {high.quantile(0.95):.1%}")


if __name__ == "__main__":
    main()
