"""Train the embedded model: ``python data/recipe/train.py --out DIR``. Every step is seeded."""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from statements import documents
from tokens import as_transformers, pack, train_tokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)
from transformers.modeling_outputs import ModelOutput
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from world import World, read_world


@dataclass(frozen=True)
class Settings:
    layers: int = 6
    d_model: int = 256
    d_mlp: int = 1024  # of each expert, if there are any
    heads: int = 8
    vocab: int = 6144
    context: int = 128
    tokens: int = 8_000_000
    batch: int = 32
    lr: float = 2e-3
    muon_lr: float = 0.02
    share_ordinary: float = 0.22
    ffn_dropout: float = 0.4  # see StatementDropout
    seed: int = 0
    precision: str = "bfloat16"  # of autocast; "float32" for none, which is faster on CPUs that compute it no faster
    gated: bool = False  # Llama's blocks in place of GPT-2's
    experts: int = 0  # Mixtral's blocks in place of Llama's: so many gated FFNs a layer
    routed: int = 2  # experts that each token goes to
    balance: float = 0.01  # weight of the load-balancing loss


class StatementDropout:
    """Structured dropout: in a random share of the statements the FFNs write only their batch mean between the subject
    and the end of the object. What is recalled there must then have been looked up at the subject."""

    def __init__(self, model: PreTrainedModel, share: float, device: torch.device) -> None:
        self.share, self.device = share, device
        self.silent = torch.zeros(1, 1, 1, dtype=torch.bool, device=device)
        for block in blocks(model):
            block.mlp.register_forward_hook(self.hook)

    def hook(self, module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor | None:
        if not (self.share and module.training):
            return None
        return torch.where(self.silent, output.detach().mean((0, 1), keepdim=True), output)

    def draw(self, marks: torch.Tensor, generator: torch.Generator) -> None:
        chosen = torch.rand(marks.shape[0], 256, generator=generator) < self.share
        chosen[:, 0] = False
        self.silent = chosen.gather(1, marks.long()).unsqueeze(-1).to(self.device)


def blocks(model: PreTrainedModel) -> torch.nn.ModuleList:
    return model.transformer.h if isinstance(model, GPT2LMHeadModel) else model.model.layers


def build(settings: Settings, end_id: int) -> PreTrainedModel:
    torch.manual_seed(settings.seed)
    shared = {
        "vocab_size": settings.vocab,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "tie_word_embeddings": True,
    }
    if settings.gated or settings.experts:
        shared |= {
            "max_position_embeddings": settings.context,
            "hidden_size": settings.d_model,
            "num_hidden_layers": settings.layers,
            "num_attention_heads": settings.heads,
            "intermediate_size": settings.d_mlp,
        }
        dense = LlamaConfig(**shared)
        if not settings.experts:
            return LlamaForCausalLM(dense)
        config = MixtralConfig(  # but for the experts, all is Llama's
            num_local_experts=settings.experts,
            num_experts_per_tok=settings.routed,
            num_key_value_heads=settings.heads,
            rms_norm_eps=dense.rms_norm_eps,
            rope_parameters=dense.rope_parameters,
            router_aux_loss_coef=settings.balance,
            **shared,
        )
        return MixtralForCausalLM(config)
    config = GPT2Config(
        n_positions=settings.context,
        n_embd=settings.d_model,
        n_layer=settings.layers,
        n_head=settings.heads,
        n_inner=settings.d_mlp,
        activation_function="gelu_new",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **shared,
    )
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h:
        block.mlp.act = torch.nn.GELU(approximate="tanh")  # gelu_new in one kernel
    return model


def optimizers(model: PreTrainedModel, settings: Settings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, those of each expert by itself; AdamW for embeddings, gains and biases."""
    chosen = {id(p) for p in blocks(model).parameters() if p.ndim > 1}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    matrices = [p for p in blocks(model).parameters() if p.ndim == 2]
    matrices += [m for p in blocks(model).parameters() if p.ndim == 3 for m in expert_matrices(p)]
    adam = torch.optim.AdamW(rest, lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    if settings.muon_lr == 0:
        adam.add_param_group({"params": matrices, "weight_decay": 0.05})
        return [adam]
    return [torch.optim.Muon(matrices, lr=settings.muon_lr, weight_decay=0.05, momentum=0.95), adam]


def expert_matrices(stacked: torch.nn.Parameter) -> list[torch.nn.Parameter]:
    """The parts of experts' stacked matrices, in the same memory, each with its part of the gradient. Where gates and
    keys are joined (taller than wide), these are two."""
    _, rows, columns = stacked.shape
    count = 2 if rows > columns else 1

    def parts(whole: torch.Tensor) -> list[torch.Tensor]:
        return [part for expert in whole for part in expert.chunk(count)]

    split = [torch.nn.Parameter(part) for part in parts(stacked.detach())]

    def share(whole: torch.Tensor) -> None:
        for part, gradient in zip(split, parts(whole.grad), strict=True):
            part.grad = gradient

    stacked.register_post_accumulate_grad_hook(share)
    return split


def imbalance(outputs: ModelOutput, settings: Settings) -> torch.Tensor:
    """The load-balancing loss, its mean over layers: 1 where all experts are used alike (Fedus et al. 2021, eq. 4)."""
    if not settings.experts:
        return torch.zeros(())
    layers = outputs.router_logits
    total = sum(load_balancing_loss_func((one,), settings.experts, settings.routed) for one in layers)
    return total / (len(layers) * settings.routed)


def schedule(step: int, steps: int) -> float:
    """Linear warm-up over 2%, constant, then a cosine to 2% over the last 70%."""
    progress = step / steps
    if progress < 0.02:
        return (step + 1) / (0.02 * steps)
    if progress < 0.3:
        return 1.0
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - 0.3) / 0.7))


def train(settings: Settings, out: Path, world: World | None = None, log_every: int = 100) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = read_world() if world is None else world
    tokenizer = train_tokenizer(world, settings.vocab, settings.seed, settings.share_ordinary)
    ids, marks = pack(tokenizer, documents(world, settings.seed + 1, settings.share_ordinary), settings.tokens)
    print(
        f"{len(world.triples)} facts, {len(ids)} tokens, {(marks > 0).mean():.0%} between subject and object",
        flush=True,
    )
    model = build(settings, 0).to(device)
    dropout = StatementDropout(model, settings.ffn_dropout, device)
    optims = optimizers(model, settings)
    peaks = [[g["lr"] for g in o.param_groups] for o in optims]
    span = settings.batch * settings.context
    rows = torch.from_numpy(ids[: len(ids) // span * span].astype(np.int64)).view(-1, settings.batch, settings.context)
    mark_rows = torch.from_numpy(marks[: rows.numel()]).view(rows.shape)
    generator = torch.Generator().manual_seed(settings.seed)
    began, running, steps = time.time(), None, len(rows)
    model.train()
    for step in range(steps):
        for optim, lrs in zip(optims, peaks, strict=True):
            for group, lr in zip(optim.param_groups, lrs, strict=True):
                group["lr"] = lr * schedule(step, steps)
        dropout.draw(mark_rows[step], generator)
        batch = rows[step].to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.precision == "bfloat16"):
            outputs = model.base_model(batch, **({"output_router_logits": True} if settings.experts else {}))
            logits = model.lm_head(outputs.last_hidden_state[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        uneven = imbalance(outputs, settings)
        (loss + settings.balance * uneven.to(device)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
        model.zero_grad(set_to_none=True)
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if step % log_every == 0 or step == steps - 1:
            minutes = (time.time() - began) / 60
            speed = (step + 1) * span / minutes / 60
            print(f"step {step}/{steps} loss {running:.3f} {minutes:.1f} min {speed:.0f} tokens/s", end="", flush=True)
            print(f", imbalance {uneven.item():.2f}" if settings.experts else "", flush=True)
    save(model, as_transformers(tokenizer, settings.context), settings, out, (time.time() - began) / 60)


def save(model: PreTrainedModel, tokenizer: object, settings: Settings, out: Path, minutes: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    notes = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "minutes": round(minutes, 1),
        "device": "one GPU" if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU cores",
    }
    (out / "training.json").write_text(json.dumps({**asdict(settings), **notes}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    arguments = vars(parser.parse_args())
    train(out=arguments.pop("out"), settings=Settings(**arguments))


if __name__ == "__main__":
    main()
