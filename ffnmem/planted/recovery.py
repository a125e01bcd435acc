"""How well each of the toolkit's measures recovers what was planted, and how often it finds what is not there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64, Int64, Num
from scipy.stats import binomtest, rankdata
from torch import Tensor

from ..core.errors import InputError, quoted
from ..core.types import VERDICTS
from ..facts.fact import Fact
from ..interventions.ablating import ablate
from ..interventions.integrated_gradients import knowledge_neurons
from ..neurons.clustering import compare
from ..neurons.inputs import Firing, Inputs, firing, random_places
from ..neurons.measures import MEASURES, measures_of
from ..neurons.measuring import Shared
from ..neurons.role_assignment import ROLES, Role
from ..prompts.attribution import attribute
from ..prompts.captures import capture
from ..prompts.circuits import ANSWER, Circuit
from ..prompts.paths import attribute_paths
from ..scanning.state import sequence_of
from .chains import ROLES as STAGES
from .mixtures import constant_level
from .planting import Planted, behind_bridge, plant
from .skeleton import blocks

# How well a number recovers a truth: AUROC, rank correlation, precision at k, each with an interval over models.

DRAWS = 400
Score = Callable[[Float64[np.ndarray, " n"], Num[np.ndarray, " n"]], float]


def auroc(score: Float64[np.ndarray, " n"], truth: Num[np.ndarray, " n"]) -> float:
    """The chance that a neuron with truth above 1 has the larger score than one with 1, ties half; NaN of one class."""
    positive: Bool[np.ndarray, " n"] = truth > 1
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((rankdata(score)[positive].sum() - n * (n + 1) / 2) / (n * m))


def spearman(score: Float64[np.ndarray, " n"], truth: Num[np.ndarray, " n"]) -> float:
    """The rank correlation, ties sharing their mean rank; NaN where either is constant."""
    ranks = [rankdata(score), rankdata(truth)]
    if any(len(r) < 2 or np.ptp(r) == 0 for r in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def precision_at(k: int) -> Score:
    """The share with truth above 1 among the k of the largest scores, ties in order; NaN of fewer than k."""

    def precision(score: Float64[np.ndarray, " n"], truth: Num[np.ndarray, " n"]) -> float:
        if len(score) < k:
            return float("nan")
        return float((truth[np.argsort(-score, kind="stable")[:k]] > 1).mean())

    return precision


def over_models(
    models: Sequence[tuple[Float64[np.ndarray, " n"], Num[np.ndarray, " n"]]], score: Score, seed: int = 0
) -> tuple[float, float, float]:
    """The mean over models, and its 95% interval by a bootstrap that draws models, and neurons within each, again.

    Args:
        models: score and truth of each model's neurons; NaN scores are left out.
    """
    known = [(s[np.isfinite(s)], t[np.isfinite(s)]) for s, t in models]
    if not known:
        return float("nan"), float("nan"), float("nan")
    value = mean([score(s, t) for s, t in known])
    rng = np.random.default_rng([seed, 8])
    drawn = np.empty(DRAWS)
    for d in range(DRAWS):
        again = []
        for i in rng.integers(len(known), size=len(known)):
            s, t = known[i]
            pick = rng.integers(len(s), size=len(s)) if len(s) else np.empty(0, np.int64)
            again.append(score(s[pick], t[pick]))
        drawn[d] = mean(again)
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return value, float("nan"), float("nan")
    low, high = np.quantile(drawn, (0.025, 0.975))
    return value, float(low), float(high)


def exact_interval(hits: int, cases: int) -> tuple[float, float]:
    """The ends of a share's 95% Clopper–Pearson interval."""
    found = binomtest(hits, cases).proportion_ci(method="exact")
    return found.low, found.high


def mean(values: Sequence[float]) -> float:
    """Of those that are numbers."""
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else float("nan")


# Whether attribution and ablation find the neuron that a fact was planted in.

SITES = ("early", "late")
FACTS = 10  # asked of each model
WITHIN = 2  # a fact's subject has a neuron of its own, without which nothing is recalled either


def of_facts(seeds: Sequence[int], step: Callable[[], None], facts: int = FACTS) -> pd.DataFrame:
    """One row a measure and site: first, the share of facts whose planted neuron it ranks first of all layers' neurons,
    its exact 95% interval low and high; second, the share ranked first or second; facts, how many were asked.

    attribute: the direct effect on the target's logit. attribute_paths: the same with what attention carries from all
    positions. ablate: the total effect of removing the neuron everywhere. knowledge_neurons: integrated gradients of
    the target's probability. The first and the last look at the last token only, where a fact recalled early is not.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for seed in seeds:
        for site in SITES:
            planted = plant("facts", seed=seed, site=site)
            for fact in planted.facts[:: max(1, len(planted.facts) // facts)][:facts]:
                for measure, rank in planted_ranks(planted, fact).items():
                    ranks.setdefault((measure, site), []).append(rank)
            step()
    rows = []
    for (measure, site), found in sorted(ranks.items()):
        counts = np.array(found)
        first = int((counts == 0).sum())
        low, high = exact_interval(first, len(counts))
        rows.append(
            {
                "measure": measure,
                "site": site,
                "first": first / len(counts),
                "low": low,
                "high": high,
                "second": float((counts < WITHIN).mean()),
                "facts": len(counts),
            }
        )
    return pd.DataFrame(rows)


def planted_ranks(planted: Planted, fact: Fact) -> dict[str, int]:
    """How many neurons each measure puts before the fact's own."""
    truth = planted.truth
    mine = truth[
        (truth["role"] == "fact") & (truth["subject"] == fact.subject) & (truth["relation"] == fact.relation)
    ].iloc[0]
    where = (int(mine["layer"]), int(mine["neuron"]))
    cap = capture(planted.model, fact.text)
    target = f" {fact.target_true}"
    paths = attribute_paths(cap, target).neurons.groupby(["layer", "neuron"], as_index=False)["logit"].sum()
    tables = {
        "attribute": attribute(cap, target).neurons.rename(columns={"logit": "effect"}),
        "attribute_paths": paths.rename(columns={"logit": "effect"}),
        "ablate": ablate(cap, target, top=None, batch=512).neurons.rename(columns={"logit": "effect"}),
        "knowledge_neurons": knowledge_neurons(cap, target).neurons.rename(columns={"attribution": "effect"}),
    }
    return {name: rank_of(table, where) for name, table in tables.items()}


def rank_of(table: pd.DataFrame, where: tuple[int, int]) -> int:
    """How many other rows have an effect that is not smaller than a neuron's: what is the same for all tells nothing.

    All of them if the neuron is not there.
    """
    mine = (table["layer"] == where[0]) & (table["neuron"] == where[1])
    if not mine.any():
        return len(table)
    return int((~(table["effect"] < table.loc[mine, "effect"].iloc[0]))[~mine].sum())


# Whether a circuit is the path that was planted: of an early or a late fact, or of a chain of three memories.

AT = {"subject last": -3, "trigger": -2, "last": -1}
"""Where a planted memory fires in a prompt of its own, counted from its end."""


def planted_path(planted: Planted, fact: Fact, length: int) -> list[list[str]]:
    """The ids of the memories that recall a fact in its own prompt of so many tokens, stage by stage."""
    truth = planted.truth
    mine = truth[(truth["subject"] == fact.subject) & truth["relation"].isin(["", fact.relation, *branches(truth)])]
    stages = STAGES if planted.kind == "chains" else ("subject", "fact")  # roles, from the first memory on
    return [
        [f"{row.layer}.{row.neuron}@{length + AT[row.position]}" for row in mine[mine["role"] == role].itertuples()]
        for role in stages
    ]


def branches(truth: pd.DataFrame) -> list[str]:
    return [name for name in truth["relation"].unique() if name.startswith("branch ")]


def path_scores(planted: Planted, fact: Fact, found: Circuit) -> dict[str, float]:
    """Precision and recall of a circuit's firings, and of its edges among firings and the answer."""
    stages = planted_path(planted, fact, len(found.tokens))
    nodes = {name for stage in stages for name in stage}
    edges = {(s, t) for one, two in zip(stages, [*stages[1:], [ANSWER]], strict=True) for s in one for t in two}
    ends = {ANSWER, *found.firings["id"]}
    drawn = {
        (edge.source, edge.target) for edge in found.edges.itertuples() if edge.source in ends and edge.target in ends
    }
    scores = {}
    for name, true, got in (("", nodes, set(found.firings["id"])), ("edge_", edges, drawn)):
        scores[f"{name}precision"] = len(true & got) / len(got) if got else float("nan")
        scores[f"{name}recall"] = len(true & got) / len(true)
    return scores


def adjusted_rand(found: Sequence[object], truth: Sequence[object]) -> float:
    """How much two groupings agree: 1 for the same groups, 0 for what chance gives (Hubert & Arabie 1985)."""
    if not len(found):
        return float("nan")
    groups = [pd.factorize(pd.Series(list(map(str, labels))))[0] for labels in (found, truth)]
    table = np.zeros([1 + max(one) for one in groups], dtype=int)
    np.add.at(table, tuple(groups), 1)

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1)).sum())

    rows, columns, total = pairs(table.sum(1)), pairs(table.sum(0)), pairs(np.array([table.sum()]))
    expected = rows * columns / total if total else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == expected else (pairs(table) - expected) / (most - expected)


def supernode_score(planted: Planted, fact: Fact, found: Circuit) -> float:
    """The adjusted Rand index of a circuit's supernodes against the planted groups: the memories of each stage and
    branch. Firings of no planted memory are left out."""
    truth = planted.truth.set_index(["layer", "neuron"])
    table = found.supernodes()
    true = [truth.loc[(row.layer, row.neuron), ["role", "subject", "relation"]] for row in table.itertuples()]
    known = [i for i, row in enumerate(true) if row["role"] != "none" and row["subject"] == fact.subject]
    return adjusted_rand([table["supernode"][i] for i in known], [tuple(true[i]) for i in known])


# How well the measures of :func:`ffnmem.polysemanticity` recover planted meanings.

K = 20


def with_truth(planted: Planted, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the planted number of meanings as ``true_meanings`` and the planted ``true_verdict``.

    Raises InputError for another kind of model, or a table of other neurons.
    """
    return beside_truth(planted, "meanings", table, {"meanings": "true_meanings", "verdict": "true_verdict"})


def beside_truth(planted: Planted, kind: str, table: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """A table with some columns of the truth, under other names; InputError for another kind, or other neurons."""
    if planted.kind != kind:
        raise InputError(f"planted must be of kind {kind!r}, not {quoted(planted.kind)}")
    truth = planted.truth[["layer", "neuron", *columns]].rename(columns=dict(columns))
    both = table.merge(truth, on=["layer", "neuron"], validate="many_to_one")
    if len(both) != len(table):
        raise InputError(f"the table has {len(table)} neurons, of which only {len(both)} are in the truth")
    return both


def meaning_scores(models: Sequence[pd.DataFrame], k: int = K, seed: int = 0) -> pd.DataFrame:
    """One row a measure: auroc of polysemantic against monosemantic neurons, spearman with the planted number,
    precision_at_k, each with ``_low`` and ``_high``, and neurons, how many it measures.

    Args:
        models: a table of each from :func:`with_truth`; dead neurons are left out.
        k: of the precision: the share of polysemantic neurons among the k that a measure puts first.
        seed: of the bootstrap over models and neurons.
    """
    alive = [table[table["true_meanings"] > 0] for table in models]
    rows = []
    for name, one in MEASURES.items():
        pairs = [(one.many * t[name].to_numpy(float), t["true_meanings"].to_numpy()) for t in alive]
        row: dict[str, str | float | int] = {"measure": name}
        for score, function in (("auroc", auroc), ("spearman", spearman), ("precision_at_k", precision_at(k))):
            found = over_models(pairs, function, seed)
            row |= dict(zip((score, f"{score}_low", f"{score}_high"), found, strict=True))
        row["neurons"] = int(sum(t[name].notna().sum() for t in alive))
        rows.append(row)
    return pd.DataFrame(rows)


def verdict_counts(models: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """How many neurons of each planted number of meanings (0: dead) got each verdict: true_meanings, then verdicts."""
    both = pd.concat(models)
    counts = both.groupby("true_meanings")["verdict"].value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=list(VERDICTS), fill_value=0)
    counts.columns = pd.Index(list(VERDICTS))
    return counts.reset_index()


def by_chance(models: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """How many neurons of random keys got each verdict: one row. What most strongly lies along a random direction is of
    several kinds too, so a share of polysemantic neurons is to be held against this one."""
    counts = pd.concat(models)["verdict"].value_counts()
    return pd.DataFrame([{name: int(counts.get(name, 0)) for name in VERDICTS}])


# How well :func:`ffnmem.roles` recovers planted roles: precision and recall, role by role.

PLANTED_AS = {"token-frequency": "frequency", "token-detector": "detector"}  # where the truth's name is another
COLUMNS = ("role", "precision", "recall", "planted", "found", "hits")


def role_scores(planted: Planted, table: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall of each role on a model whose neurons' roles are known.

    A neuron counts as found for every role that applies to it (the columns ``is_…``), not only for its primary one.

    Args:
        planted: of ``plant("roles")``.
        table: of :func:`ffnmem.roles` for its model; of all neurons, or of some layers. Roles that it does not tell
            about, for want of a store, are left out.

    Returns:
        One row a role, in the order of ``ROLES``: role, precision (hits / found), recall (hits / planted), and the
        numbers of neurons planted, found, and hits (both). NaN where nothing was found, or planted.

    Raises: InputError for planted meanings or facts, or another model's table.
    """
    theirs = table.attrs.get("provenance", {}).get("fingerprint", planted.model.fingerprint)
    if planted.kind == "roles" and theirs != planted.model.fingerprint:
        raise InputError(f"the table is of model {theirs}, not of the planted {planted.model.fingerprint}")
    flags = [role for role in ROLES if role.column in table]
    found = table[["layer", "neuron", *(role.column for role in flags)]]
    both = beside_truth(planted, "roles", found, {"role": "planted_role"})
    return pd.DataFrame([score(both, role) for role in flags], columns=list(COLUMNS))


def score(both: pd.DataFrame, role: Role) -> dict[str, str | float | int]:
    """One row: the truth's neurons of a role against those found."""
    name = PLANTED_AS.get(role.name, role.name)
    true = both["planted_role"] == name
    found = both[role.column].astype(bool)
    hits, n_true, n_found = int((true & found).sum()), int(true.sum()), int(found.sum())
    return {
        "role": role.name,
        "precision": hits / n_found if n_found else float("nan"),
        "recall": hits / n_true if n_true else float("nan"),
        "planted": n_true,
        "found": n_found,
        "hits": hits,
    }


# Neurons that mean nothing, to count how often each measure's null is rejected: 5% of them, or fewer, should be.

ALPHA = 0.05


def at_random(found: Firing, places: Int64[np.ndarray, " places"], seed: int) -> Firing:
    """The same neurons with the same strengths at random places, each of a sequence of its own: they fire by chance.

    Args:
        places: random ones, several of each sequence.
    """
    rng = np.random.default_rng([seed, 9, found.layer])  # else two layers' neurons would share their examples
    moved, strengths = np.full_like(found.places, -1), np.zeros_like(found.strengths)
    for i, count in enumerate(found.counts.tolist()):
        drawn = rng.permutation(places)
        _, first = np.unique(sequence_of(drawn), return_index=True)
        apart = drawn[np.sort(first)][:count]  # a long sequence comes early more often than a short one
        moved[i, : len(apart)] = apart
        strengths[i, : len(apart)] = found.strengths[i, : len(apart)]
    return replace(found, places=moved, strengths=strengths)


def example_nulls(shared: Shared) -> pd.DataFrame:
    """The p-values of measures of examples for neurons whose examples are random places."""
    frames = []
    store = shared.store
    for layer in range(store.n_layers):
        found = at_random(firing(store, layer), random_places(store, shared.seed + 1), shared.seed)
        with Inputs(store, shared.model, {layer: found.places[found.places >= 0]}) as inputs:
            background, counts = shared.backgrounds[layer], shared.counts
            examples = compare(store, shared.model, found, inputs, background, counts, shared.seed, shared.draws)
        frames.append(pd.DataFrame({f"{name}_p": one.p for name, one in examples.estimates.items()}))
    return pd.concat(frames, ignore_index=True)


@torch.no_grad()
def scrambled(planted: Planted, seed: int = 0) -> Planted:
    """The planted model with keys, gates and values of random directions, each as long as before: what they mean is
    chance. Routers stay.

    Biases are minus a key's (or gate's) length, by which its product with a norm's outputs varies: so its truth is not
    this model's.
    """
    hf = copy.deepcopy(planted.pristine)
    generator = torch.Generator().manual_seed(seed)

    def turn(weight: Tensor, side: int, lengths: Tensor) -> None:
        rows = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        rows -= rows.mean(side, keepdim=True)  # (1, …, 1) is what LayerNorms remove
        weight.copy_(rows * (lengths.norm(dim=side, keepdim=True) / rows.norm(dim=side, keepdim=True)))

    for block in blocks(hf):
        if hf.config.model_type == "gpt2":
            for weight, side in ((block.mlp.c_fc.weight, 0), (block.mlp.c_proj.weight, 1)):
                turn(weight, side, weight)
            size = block.mlp.c_fc.weight.norm(dim=0)
            block.mlp.c_fc.bias.copy_(-size)  # about one standard deviation: some fire often, none always
            continue
        experts = block.mlp.experts
        for weight, side in ((experts.gate_up_proj, 2), (experts.down_proj, 1)):
            before = weight.contiguous()  # so that its lengths are rounded alike however it lies in memory
            turn(weight, side, before - before.mean(side, keepdim=True))
        gates = experts.gate_up_proj.chunk(2, dim=1)[0]
        gates -= gates.norm(dim=2, keepdim=True) / constant_level(hf) / gates.shape[2] ** 0.5
    name = f"{planted.model.name}-scrambled"
    return replace(planted, model=behind_bridge(hf, planted.model.tokenizer, name), pristine=hf)


def null_rates(examples: Sequence[pd.DataFrame], weights: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row a measure: the rate of p < .05 where nothing is to be found, with its exact 95% interval, and neurons.

    Args:
        examples: of :func:`example_nulls`, one a model. weights: tables of :func:`ffnmem.polysemanticity` of models
            from :func:`scrambled`.
    """
    rows = []
    for names, frames in ((measures_of("examples"), examples), (measures_of("sample"), weights)):
        both = pd.concat(frames) if frames else pd.DataFrame()
        for name in names if len(both) else ():
            p = both[f"{name}_p"].dropna()
            low, high = exact_interval(int((p < ALPHA).sum()), max(len(p), 1))
            rate = float((p < ALPHA).mean()) if len(p) else float("nan")
            rows.append({"measure": name, "rate": rate, "low": low, "high": high, "neurons": len(p)})
    return pd.DataFrame(rows)
