"""ROME's v* by ``ffnmem.rome``'s own descent, against whole forward passes as the published program does, in one run.

GPT-2 small's shape with random weights, a prompt of 8 tokens with a subject of two, 21 contexts of which 20 have 5 or
10 more tokens, the essence's prompt, 20 steps (the last only measures), layer 5. The other way runs the same Hugging
Face model with its own fused attention on all 22 rows, right-padded, with a hook at the subject's last token,
unembeds every position as the program does (``--last`` only those that are read), and lets autograd go back through
all layers down to δ. The two take turns; the figure is the median of the paired ratios. What both find is compared.
Then the same for v* by projections, until the target is likely: against 20 steps of whole
passes, one request and 16 in a batch. Then 16 requests in one batch against one alone, and beside it the same for the
matrix products of their steps and nothing else: what a batch can save on this machine, since each request has products
of its own to do. And whole calls of ``fm.rome``, which sample contexts and factor the second moment once for all of
their facts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from common import gpt2_small, machine, paired, toy_tokenizer

import ffnmem as fm
from ffnmem.editing.preparing import EditPlan, plan_edits
from ffnmem.editing.requests import Request
from ffnmem.editing.values import optimise
from ffnmem.facts import Fact

LAYER, STEPS, ROWS = 5, 20, 21
SETTINGS = {"optimiser": "adam", "steps": STEPS, "rate": 0.02, "stop": 0.0, "clamp": 1e9}
PROJECTIONS = {
    "optimiser": "projections",
    "clamp": 1e9,
    "rate": 1e9,
}  # as derived, but for bounds that a trained model's v₀ is the measure of
BARS = {"one": 4, "batch": 2, "projections": 8}


def fact(i: int = 0) -> Fact:
    prompt = f"w{101 + i} {{}} w{404 + i} w55 w{66 + i} w7007 w88"
    return Fact(f"w{2002 + i} w{303 + i}", "relation", prompt, f"w{9000 + i}", f"w{11_000 + i}", id=str(i))


def contexts() -> list[str]:
    words = [[f"w{(37 * i * j + 11 * i + 5) % 40_000}" for j in range(4 if i <= 10 else 9)] for i in range(1, ROWS)]
    return ["{}", *(" ".join(some) + " w13 {}" for some in words)]


def plan_of(model: fm.Model, count: int, settings: dict[str, Any] = SETTINGS) -> EditPlan:
    return plan_edits(model, [fact(i) for i in range(count)], layer=LAYER, contexts=contexts(), settings=settings)


def plain(network: Any, model: fm.Model, plan: EditPlan, request: Request, last: bool) -> torch.Tensor:
    """δ by whole forward passes."""
    rows = [*request.rows, request.essence]
    length = max(len(row.tokens) for row in rows)
    tokens, mask = torch.zeros(2, len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row.tokens)], mask[i, : len(row.tokens)] = torch.tensor(row.tokens), 1
    ends, lookups = mask.sum(1) - 1, [row.lookup for row in rows]
    every, settings = torch.arange(len(rows)), plan.settings
    weights = settings.weights(len(request.rows)).float()
    delta = torch.zeros(model.d_model, requires_grad=True)
    start: list[torch.Tensor] = []

    def add(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        if not start:
            start.append(output[0, lookups[0]].detach().clone())
        more = torch.zeros_like(output)
        more[every, lookups] = delta
        return output + more

    handle = network.transformer.h[LAYER].mlp.register_forward_hook(add)
    adam = torch.optim.Adam([delta], lr=settings.rate)
    before = None
    for step in range(STEPS):
        adam.zero_grad()
        if last:
            final = network.transformer(tokens, attention_mask=mask, use_cache=False).last_hidden_state
            logs = network.lm_head(final[every, ends]).log_softmax(-1)
        else:
            logs = network(tokens, attention_mask=mask, use_cache=False).logits.log_softmax(-1)[every, ends]
        if before is None:
            before = logs[-1].detach().clone()
        kl = (logs[-1].exp() * (logs[-1] - before)).sum()
        nll = -(weights * logs[:-1, request.ids[0]]).sum()
        if step == STEPS - 1:
            break
        (nll + settings.kl * kl + settings.decay * delta.norm() / start[0].norm() ** 2).backward()
        adam.step()
    handle.remove()
    return delta.detach()


def v_star(plan: EditPlan) -> tuple[Any, ...]:
    return plan.layers, plan.requests, plan.settings


def products(model: fm.Model, plan: EditPlan) -> Callable[[], None]:
    """The matrix products of the steps of a plan's requests, forward and back, and nothing else."""
    rows = [row for request in plan.requests for row in (*request.rows, request.essence)]
    positions = len(rows) * max(row.after for row in rows)
    d_model, d_mlp = model.d_model, model.ffn[0].d_mlp
    above = model.n_layers - LAYER - 1
    shapes = [(positions, d_model, 3 * d_model), (positions, d_model, d_model)] * above
    shapes += [(positions, d_model, d_mlp), (positions, d_mlp, d_model)] * (above - 1)
    shapes += [(len(rows), d_model, d_mlp), (len(rows), d_mlp, d_model), (len(rows), d_model, model.d_vocab)]
    pairs = {shape: (torch.randn(shape[:2]), torch.randn(shape[1:])) for shape in set(shapes)}

    def run() -> None:
        for _ in range(plan.settings.steps):
            for shape in shapes:
                x, weight = pairs[shape]
                (x @ weight) @ weight.T

    return run


def moment_of(model: fm.Model) -> fm.editing.SecondMoment:
    """Of random words, more of them than neurons."""
    generator = random.Random(0)
    texts = [" ".join(f"w{generator.randrange(50_000)}" for _ in range(100)) for _ in range(40)]
    return fm.editing.second_moment(model, texts, layers=[LAYER])


def whole(model: fm.Model, moment: fm.editing.SecondMoment, count: int) -> None:
    """A call of ``fm.rome`` as a new user makes it: nothing is kept from the one before."""
    fresh = replace(moment, _kept={})
    fm.rome(model, [fact(i) for i in range(count)], layer=LAYER, moment=fresh, settings=SETTINGS, force=True)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    network = gpt2_small()
    model = fm.load(gpt2_small(), tokenizer=toy_tokenizer(network.config.vocab_size), device="cpu")
    network.requires_grad_(False)
    one, many = plan_of(model, 1), plan_of(model, arguments.batch)
    ours = optimise(one.layers, one.requests, one.settings)[0].delta
    theirs = plain(network, model, one, one.requests[0], arguments.last)
    times = paired(
        lambda: optimise(one.layers, one.requests, one.settings),
        lambda: plain(network, model, one, one.requests[0], arguments.last),
        arguments.rounds,
        warmups=0,
    )
    found = {count: plan_of(model, count, PROJECTIONS) for count in (1, arguments.batch)}
    passes = [each.passes for each in optimise(*v_star(found[arguments.batch]))]
    projected = {
        count: paired(
            lambda own=own: optimise(*v_star(own)),  # type: ignore[misc]
            lambda: plain(network, model, one, one.requests[0], arguments.last),
            arguments.rounds,
            warmups=0,
        )
        for count, own in found.items()
    }
    batched = paired(
        lambda: optimise(many.layers, many.requests, many.settings),
        lambda: optimise(one.layers, one.requests, one.settings),
        arguments.rounds,
        warmups=0,
    )
    bare = paired(products(model, many), products(model, one), arguments.rounds, warmups=0)
    moment = moment_of(model)
    calls = paired(
        lambda: whole(model, moment, arguments.batch), lambda: whole(model, moment, 1), arguments.rounds, warmups=0
    )
    return {
        "one": round(statistics.median(b / a for a, b in times), 2),
        "ours_s": round(statistics.median(a for a, _ in times), 2),
        "plain_s": round(statistics.median(b for _, b in times), 2),
        "projections": round(statistics.median(b / a for a, b in projected[1]), 2),
        "projections_s": round(statistics.median(a for a, _ in projected[1]), 2),
        "projections_batch": round(
            statistics.median(b * arguments.batch / a for a, b in projected[arguments.batch]), 2
        ),
        "projections_batch_s_each": round(
            statistics.median(a for a, _ in projected[arguments.batch]) / arguments.batch, 2
        ),
        "passes": statistics.median(passes),
        "batch": round(statistics.median(b * arguments.batch / a for a, b in batched), 2),
        "batch_s_each": round(statistics.median(a for a, _ in batched) / arguments.batch, 2),
        "limit": round(statistics.median(b * arguments.batch / a for a, b in bare), 2),
        "limit_s_each": round(statistics.median(a for a, _ in bare) / arguments.batch, 2),
        "call": round(statistics.median(b * arguments.batch / a for a, b in calls), 2),
        "call_s": round(statistics.median(b for _, b in calls), 2),
        "call_s_each": round(statistics.median(a for a, _ in calls) / arguments.batch, 2),
        "off": float((ours - theirs).norm() / theirs.norm()),
        "rounds": arguments.rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--last", action="store_true", help="the other way unembeds only what is read")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments) | machine()
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"v* of one edit                    {result['ours_s']} s")
    print(f"by whole forward passes           {result['plain_s']} s")
    print(f"median ratio                      {result['one']}   (bar: {BARS['one']})")
    print(f"v* by projections                 {result['projections_s']} s, {result['passes']:.0f} passes")
    print(f"whole passes to that              {result['projections']}   (bar: {BARS['projections']})")
    print(f"{arguments.batch} by projections, each          {result['projections_batch_s_each']} s")
    print(f"whole passes, one by one, to that {result['projections_batch']}   (bar: {BARS['projections']})")
    print(f"{arguments.batch} edits in a batch, each         {result['batch_s_each']} s")
    print(f"cheaper than one alone            {result['batch']}   (bar: {BARS['batch']})")
    print(f"  their matrix products, each        {result['limit_s_each']} s")
    print(f"  cheaper than one's                 {result['limit']}")
    print(f"a call of fm.rome for one fact     {result['call_s']} s")
    print(f"for {arguments.batch}, each                       {result['call_s_each']} s")
    print(f"cheaper than for one               {result['call']}   (bar: {BARS['batch']})")
    print(f"difference of what both find      {result['off']:.1e} of its length")
    print(f"GPT-2 small's shape, {ROWS} contexts, {STEPS} steps, {result['rounds']} paired rounds")
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
