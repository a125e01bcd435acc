"""ROME's v* by ``ffnmem.rome``'s own descent, against whole forward passes as the published program does, in one run.

GPT-2 small's shape with random weights, a prompt of 8 tokens with a subject of two, 21 contexts of which 20 have 5 or
10 more tokens, the essence's prompt, 20 steps (the last only measures), layer 5. The other way runs the same Hugging
Face model with its own fused attention on all 22 rows, right-padded, with a hook at the subject's last token,
unembeds every position as the program does (``--last`` only those that are read), and lets autograd go back through
all layers down to δ. Ways take turns; figures are medians of paired ratios. What both find is compared.
Then v* by projections, until the target is likely: beside whole passes, one request and 16 in a batch, and what a
batch can save of the matrix products on this machine, since each request has products of its own to do. Then whole
calls of ``fm.rome``, which sample contexts and factor the second moment once for all of their facts; and what judging
edits of atlas costs, by given answers and by what the model writes. Each figure is printed as soon as it is there.

``--model smollm2 --facts FILE --moment FILE --layer 2`` instead rewrites facts that a real model knows, each in a call
of ``fm.rome`` of its own and then all of them in one, and tells seconds and steps; what judging these edits costs; and
v* as found by default beside all steps of the published procedure by whole passes, of the first nine facts whose target
is one token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from common import gpt2_small, in_turn, machine, toy_tokenizer

import ffnmem as fm
from ffnmem.editing.preparing import EditPlan, plan_edits
from ffnmem.editing.requests import Request
from ffnmem.editing.values import optimise
from ffnmem.facts import Fact

LAYER, STEPS, ROWS = 5, 20, 21
SETTINGS = {"optimiser": "adam", "steps": STEPS, "rate": 0.02, "relative": False, "stop": 0.0, "clamp": 1e9}
PROJECTIONS = {
    "optimiser": "projections",
    "clamp": 1e9,
    "rate": 1e9,
}  # as derived, but for bounds that a trained model's v₀ is the measure of
WHOLE, WHOLE_FACTS = {"stop": 0.0, "clamp": 1e9}, 9  # all steps; facts of a real model, half a minute each
BARS = {"one": 4, "batch": 2, "projections": 8, "generated": 2}


def fact(i: int = 0) -> Fact:
    prompt = f"w{101 + i} {{}} w{404 + i} w55 w{66 + i} w7007 w88"
    return Fact(f"w{2002 + i} w{303 + i}", "relation", prompt, f"w{9000 + i}", f"w{11_000 + i}", id=str(i))


def contexts() -> list[str]:
    words = [[f"w{(37 * i * j + 11 * i + 5) % 40_000}" for j in range(4 if i <= 10 else 9)] for i in range(1, ROWS)]
    return ["{}", *(" ".join(some) + " w13 {}" for some in words)]


def plan_of(model: fm.Model, count: int, settings: dict[str, Any] = SETTINGS) -> EditPlan:
    return plan_edits(model, [fact(i) for i in range(count)], layer=LAYER, contexts=contexts(), settings=settings)


def plain(plan: EditPlan, request: Request, last: bool) -> torch.Tensor:
    """δ by whole forward passes of the Hugging Face model, whose parameters take no gradients."""
    model, layers = plan.model, plan.layers
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

    handle = layers.parts[settings.layer].project_out.register_forward_hook(add)
    adam = torch.optim.Adam([delta], lr=settings.rate)
    before = None
    for step in range(settings.steps):
        adam.zero_grad()
        final = layers.body(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
        logits = model.logits_of(final[every, ends]) if last else model.logits_of(final)[every, ends]
        logs = logits.log_softmax(-1)
        if before is None:
            before = logs[-1].detach().clone()
        kl = (logs[-1].exp() * (logs[-1] - before)).sum()
        nll = -(weights * logs[:-1, request.ids[0]]).sum()
        if step == settings.steps - 1:
            break
        (nll + settings.kl * kl + settings.decay * delta.norm() / start[0].norm() ** 2).backward()
        adam.step()
    handle.remove()
    return delta.detach()


def v_star(plan: EditPlan) -> tuple[Any, ...]:
    return plan.layers, plan.requests, plan.settings


def products(model: fm.Model, plan: EditPlan, passes: int) -> Callable[[], None]:
    """The matrix products of some passes of a plan's requests, forward and back, and nothing else."""
    rows = [row for request in plan.requests for row in (*request.rows, request.essence)]
    positions = len(rows) * max(row.after for row in rows)
    d_model, d_mlp = model.d_model, model.ffn[0].d_mlp
    above = model.n_layers - LAYER - 1
    shapes = [(positions, d_model, 3 * d_model), (positions, d_model, d_model)] * above
    shapes += [(positions, d_model, d_mlp), (positions, d_mlp, d_model)] * (above - 1)
    shapes += [(len(rows), d_model, d_mlp), (len(rows), d_mlp, d_model), (len(rows), d_model, model.d_vocab)]
    pairs = {shape: (torch.randn(shape[:2]), torch.randn(shape[1:])) for shape in set(shapes)}

    def run() -> None:
        for _ in range(passes):
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
    fm.rome(model, [fact(i) for i in range(count)], layer=LAYER, moment=fresh, settings=PROJECTIONS, force=True)


def ratio(slow: list[float], fast: list[float], times: int = 1) -> float:
    """The median of paired ratios, a fast one doing the work of so many slow ones."""
    return round(statistics.median(b * times / a for a, b in zip(fast, slow, strict=True)), 2)


def each(times: list[float], count: int = 1) -> float:
    return round(statistics.median(times) / count, 2)


def atlas_edits(limit: int) -> tuple[fm.Model, list[Fact], list[fm.Edit]]:
    model = fm.load("atlas")
    facts = [fact for fact in fm.load_facts("atlas") if fact.target_new][:: 3000 // limit][:limit]
    return model, facts, [fm.rome(model, fact) for fact in facts]


def judging(model: fm.Model, facts: list[Fact], edits: list[fm.Edit], rounds: int) -> dict[str, list[float]]:
    """Edits that are there already, judged by given answers alone, and by what the model writes besides."""
    ready = fm.evaluation.made(edits, "ready")
    return in_turn(
        {
            "given": lambda: fm.evaluate(model, facts, ready, drift=False),
            "generated": lambda: fm.evaluate(model, facts, ready, drift=False, protocol="generated"),
        },
        rounds,
    )


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, float, str]]:
    """Each figure as soon as it is there: its name, its value, and what it is in words."""
    rounds, batch = arguments.rounds, arguments.batch
    network = gpt2_small()
    model = fm.load(network, tokenizer=toy_tokenizer(network.config.vocab_size), device="cpu")
    model.hf_model.requires_grad_(False)
    one, few, many = plan_of(model, 1), plan_of(model, 1, PROJECTIONS), plan_of(model, batch, PROJECTIONS)
    found: dict[str, Any] = {}

    def keep(name: str, run: Callable[[], Any]) -> Callable[[], None]:
        return lambda: found.update({name: run()})

    times = in_turn(
        {
            "adam": keep("adam", lambda: optimise(*v_star(one))),
            "projections": lambda: optimise(*v_star(few)),
            "whole": keep("whole", lambda: plain(one, one.requests[0], arguments.last)),
        },
        rounds,
    )
    yield "whole_s", each(times["whole"]), f"s: v* by {STEPS} whole passes, as published"
    yield "ours_s", each(times["adam"]), "s: the same steps by ours"
    yield "one", ratio(times["whole"], times["adam"]), f"x, the ratio (bar: {BARS['one']})"
    off = float((found["adam"][0].delta - found["whole"]).norm() / found["whole"].norm())
    yield "off", off, "of its length: the difference of what both find"
    yield "projections_s", each(times["projections"]), "s: v* by projections"
    yield (
        "projections",
        ratio(times["whole"], times["projections"]),
        f"x, whole passes to it (bar: {BARS['projections']})",
    )
    batched = in_turn({"batch": keep("batch", lambda: optimise(*v_star(many)))}, rounds)["batch"]
    passes = [own.passes for own in found["batch"]]
    yield "passes", statistics.median(passes), f"passes, median of {batch}"
    yield "batch_s_each", each(batched, batch), f"s: v* by projections, each of {batch} in a batch"
    yield "batch", ratio(times["projections"], batched, batch), f"x, one alone to it (bar: {BARS['batch']})"
    bare = in_turn({"one": products(model, few, 1), "many": products(model, many, 1)}, rounds)
    yield "limit_s", each(bare["one"]), "s: the matrix products of one pass of one, and nothing else"
    yield (
        "limit",
        ratio(bare["one"], bare["many"], batch),
        "x: what a batch saves of these, the limit of the ratio above",
    )
    moment = moment_of(model)
    calls = in_turn({"one": lambda: whole(model, moment, 1), "many": lambda: whole(model, moment, batch)}, rounds)
    yield "call_s", each(calls["one"]), "s: a call of fm.rome for one fact, nothing kept from before"
    yield "call_s_each", each(calls["many"], batch), f"s: each of {batch} in one call"
    yield "call", ratio(calls["one"], calls["many"], batch), "x, the ratio"
    judged = judging(*atlas_edits(arguments.judged), rounds)
    yield "given_s", each(judged["given"], arguments.judged), "s: judging an edit of atlas by given answers"
    yield (
        "generated",
        ratio(judged["generated"], judged["given"]),
        f"x: by what it writes (bar: at most {BARS['generated']})",
    )


def measure_real(arguments: argparse.Namespace) -> Iterator[tuple[str, float, str]]:
    """The same of calls of ``fm.rome`` on facts that a trained model knows."""
    model, count = fm.load(arguments.model), arguments.batch
    moment = fm.editing.SecondMoment.load(arguments.moment)
    facts = [one for one in fm.facts.with_targets(fm.load_facts(arguments.facts)) if one.target_new]
    random.Random(arguments.seed).shuffle(facts)
    some = list(fm.facts.filter_known(model, facts[: 8 * count]).facts)[:count]

    def rewrite(which: list[Fact]) -> list[fm.Edit]:
        return list(fm.rome(model, which, layer=arguments.layer, moment=replace(moment, _kept={}), force=True))

    rewrite(some[:1])  # what is made once: compiled, read, imported
    made: list[fm.Edit] = []
    alone = in_turn({str(i): lambda one=one: made.extend(rewrite([one])) for i, one in enumerate(some)}, 1)
    took = sorted(times[0] for times in alone.values())
    together = in_turn({"all": lambda: made.extend(rewrite(some))}, 1)["all"]
    numbers = [edit.numbers.iloc[0] for edit in made[: len(some)]]
    yield "real_s", each(took), f"s: a call of fm.rome for one fact, median of {len(some)} (bar: 6)"
    yield "real_s_least", took[0], "s: the least of them"
    yield "real_s_most", took[-1], "s: the most"
    yield "real_steps", statistics.median(one["steps"] for one in numbers), "steps, median"
    yield "real_reached", sum(bool(one["reached"]) for one in numbers), "of them reached"
    yield "real_s_each", each(together, len(some)), f"s: each of {len(some)} in one call (bar: 3)"
    judged = judging(model, some, made[: len(some)], 1)
    yield "real_given_s", each(judged["given"], len(some)), "s: judging an edit by given answers"
    yield (
        "real_generated",
        ratio(judged["generated"], judged["given"]),
        f"x: by what it writes (bar: at most {BARS['generated']})",
    )
    model.hf_model.requires_grad_(False)
    whole: list[float] = []
    ours: list[float] = []
    for i, one in enumerate(some):
        slow = plan_edits(model, [one], layer=arguments.layer, settings={"base": "published", **WHOLE})
        if len(whole) < WHOLE_FACTS and len(slow.requests[0].ids) == 1:
            quick = replace(slow, settings=plan_edits(model, [one], layer=arguments.layer).settings)
            ways = {
                "whole": lambda slow=slow: plain(slow, slow.requests[0], arguments.last),
                "ours": lambda quick=quick: optimise(*v_star(quick)),
            }
            times = in_turn(dict(list(ways.items())[:: -1 if i % 2 else 1]), 1)
            whole, ours = whole + times["whole"], ours + times["ours"]
    yield "real_whole_s", each(whole), f"s: v* by {STEPS} whole passes, as published, median of {len(whole)}"
    yield "real_ours_s", each(ours), "s: v* as found by default"
    yield "real", ratio(whole, ours), f"x, the ratio (bar: {BARS['projections']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a trained model, to rewrite facts that it knows")
    parser.add_argument("--facts", help="with --model: which; new targets are made where there are none")
    parser.add_argument("--moment", help="with --model: its second moment")
    parser.add_argument("--layer", type=int, help="with --model: whose FFN is edited")
    parser.add_argument("--seed", type=int, default=0, help="with --model: of the facts drawn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--judged", type=int, default=24, help="edits of atlas")
    parser.add_argument("--last", action="store_true", help="the other way unembeds only what is read")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.model and (arguments.facts is None or arguments.moment is None):
        parser.error("--model needs --facts and --moment")
    result: dict[str, Any] = {}
    for name, value, words in measure_real(arguments) if arguments.model else measure(arguments):
        result[name] = value
        if not arguments.json:
            print(f"{value:9.2e}" if name == "off" else f"{value:9.2f}", words, flush=True)
    result |= {"rounds": arguments.rounds, **machine()}
    if arguments.json:
        print(json.dumps(result))
        return
    shape = "GPT-2 small's shape" if arguments.model is None else arguments.model
    print(f"{shape}, {ROWS} contexts" + ("" if arguments.model else f", {result['rounds']} paired rounds"))
    print(f"{result['threads']} threads, torch {result['torch']}, {result['machine']}")


if __name__ == "__main__":
    main()
