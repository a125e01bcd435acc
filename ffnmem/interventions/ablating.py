"""``ablate``: many neurons removed one at a time, with everything below them reused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.errors import InputError, check_choice, counted, quoted
from ..core.neuron_names import NeuronNames, pair_of
from ..core.number_text import decimals, format_probability
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.sheets import (
    Column,
    Promoted,
    Sheet,
    Span,
    Table,
    explain_negative,
    promoted_column,
)
from ..core.types import Count, Whole, checked
from ..facts.answers import Answer
from ..models.model import AGREE, HALF, Model
from ..models.norms import at_least_float32
from ..models.replaying import Restart
from ..models.residual import FinalNorm, model_logits, pulled_through
from ..models.turns import in_turn
from ..prompts.answer_text import describe_answer
from ..prompts.attribution import Next, attribute, targets_everywhere
from ..prompts.captures import Capture, Target, answer_after, single_token, with_answer
from ..prompts.paths import attribute_paths
from ..show.result import Result
from .changes import Change, Mean, Resample, Set, as_change, make_plan

# What ablation and knowledge-neuron attribution share: a capture's prompt, ready to be run again, and its answer.

EXACT = 1e-10  # of the largest, in float64


@dataclass(frozen=True, eq=False)
class OneAnswer:
    """One answer of one prompt of a capture."""

    capture: Capture
    row: int
    position: int
    target: int
    foil: int | None
    answered: Answer
    restart: Restart

    @property
    def model(self) -> Model:
        return self.capture.model

    def coefficients(self, layer: int) -> Float[Tensor, " d_mlp"]:
        """At the answer's position."""
        return self.restart.coefficients[layer][-1]

    def scores(self, final: Float[Tensor, "rows d_model"]) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
        """The target's logit (minus the foil's) and its log-probability, in float64, of what reaches the final norm.

        The logit is that of :func:`ffnmem.attribute`: before a soft cap, where the model has one.
        """
        logits = self.restart.logits(final).double()
        target = logits[:, self.target]
        log = target - logits.logsumexp(-1)
        if self.model.layout.soft_cap is not None:
            ids = torch.full((len(final),), self.target, device=final.device)
            return model_logits(self.model, self.restart.replay.layers.final_norm(final), ids, self.foil), log
        return target if self.foil is None else target - logits[:, self.foil], log

    def directions(self) -> list[Float[Tensor, " d_model"]]:
        """For each layer, what its FFN's output at the answer's position adds to the logit: u/σ, norms' scales frozen.

        Where a norm stands behind the FFN, u is taken through it.
        """
        norm = FinalNorm(self.model)
        u, _ = norm.directions(torch.tensor([self.target], device=self.model.device), self.foil)
        u = u / norm.scale(at_least_float32(self.restart.stream[-1][-1:])).unsqueeze(-1)
        written = self.restart.replay.ffn
        return [pulled_through(self.model, i, u, written[i][0, -1:])[0] for i in range(self.model.n_layers)]


def ask(
    capture: Capture,
    target: Target | Next,
    foil: str | SupportsIndex | None,
    position: SupportsIndex,
    prompt: SupportsIndex | None,
    first_token: bool,
) -> OneAnswer:
    """Choose the answer, run its prompt once, and check that this is the pass that was captured.

    Raises InputError: several targets, a capture of some layers, of an intervention or of other weights.
    UnsupportedModelError: layers that cannot be run again by themselves. OutOfRangeError: no such position or prompt.
    """
    model = capture.model
    if capture.residual is None:
        raise InputError("this needs a capture of every layer: capture(model, prompt) without layers=")
    capture.check_current()
    made_under = dict(capture.provenance.settings).get("interventions")
    if made_under:
        raise InputError(f"the capture was made under an intervention ({made_under}): capture the prompt without it")
    at = capture.position(position, prompt)
    if isinstance(target, Next):
        target = int(targets_everywhere(capture, target, at, prompt)[1])
    answer = answer_after(capture, target, foil, capture.row(prompt), at, first_token)
    read, last = single_token(model, answer, "this"), answer.positions[0]
    capture, row = with_answer(capture, answer, capture.row(prompt))
    assert capture.residual is not None
    expected = capture.residual.final_in[row, : last + 1]
    restart = Restart(model, capture.tokens[row, : last + 1])
    off = distance(restart, expected)
    if model.dtype == torch.float64 and off > EXACT:  # the bridge's attention takes its softmax in float32
        other = Restart(model, capture.tokens[row, : last + 1], "eager")
        restart, off = min((restart, off), (other, distance(other, expected)), key=lambda found: found[1])
    if not off <= AGREE.get(model.dtype, HALF):
        raise InputError(
            f"{model.name}: its layers by themselves compute something else than was captured (off by {off:.1g}): "
            "remove hooks that change what passes, and load it without compatibility mode"
        )
    return OneAnswer(capture, row, last, read, answer.foil_id, answer, restart)


def distance(restart: Restart, expected: Float[Tensor, "pos d_model"]) -> float:
    """The largest difference of what goes into the final norm, as a share of the largest number at its position.

    By position, because what stands at the first token may be a thousand times what stands elsewhere.
    """
    off = (restart.stream[-1] - expected).abs().amax(-1) / expected.abs().amax(-1).clamp(min=1e-30)
    return float(off.max())


# `Ablation`: what the removal of each of some neurons does to an answer, beside what attribution says it does.


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Result):
    """Direct and total effects of single neurons on one answer. Made by :func:`ffnmem.ablate`.

    Effects are what the neuron adds: clean minus ablated, so that a positive one says that without the neuron the
    answer would be less likely; the loss likewise is ablated minus clean, what the neuron saves.

    Attributes:
        neurons: one row a neuron, largest \\|logit\\| first: ``layer``, ``neuron``, ``coefficient`` (at the answer's
            position), ``direct`` (what it adds to the logit by itself, all else frozen), ``logit`` (what it adds in
            all, through every later layer and position), ``probability``, ``loss`` (in nats), ``peak_position`` and
            ``peak``: where among the tokens at which it was removed its coefficient is largest, and that coefficient. A
            neuron that writes at the subject for attention to read does not fire at the answer.
        logit, probability, loss: of the target in the clean pass; the logit minus the foil's if there is one.
        target, target_id, foil, foil_id: tokens, as text and as ids.
        position: where the answer is read; positions: where neurons were removed, None for every one of the prompt.
        how: what they became.
        tokens: the prompt's tokens.
    """

    main = "neurons"
    in_json = "tokens position target foil logit probability loss how positions spearman opposite neurons"
    in_repr = "neurons how target foil logit spearman"

    neurons: pd.DataFrame
    logit: float
    probability: float
    loss: float
    target: str
    target_id: int
    foil: str | None
    foil_id: int | None
    position: int
    positions: tuple[int, ...] | None
    how: str
    tokens: tuple[str, ...]
    provenance: Provenance

    @property
    def spearman(self) -> float:
        """Rank correlation between direct and total effect on the logit; NaN where either is the same for all."""
        from scipy import stats

        direct, total = self.neurons["direct"], self.neurons["logit"]
        if len(self.neurons) < 2 or direct.nunique() < 2 or total.nunique() < 2:
            return float("nan")
        return float(stats.spearmanr(direct, total).statistic)

    @property
    def opposite(self) -> int:
        """How many neurons have a direct effect of the other sign than their total one: there attribution misleads."""
        return int((self.neurons["direct"] * self.neurons["logit"] < 0).sum())

    def sheet(
        self,
        top: Whole | None = 20,
        *,
        promoted: Promoted | None = None,
        attributed: pd.DataFrame | None = None,
    ) -> Sheet:
        """The answer, how far direct and total effects agree, and both of each neuron.

        Args:
            top: how many neurons; None for all.
            promoted: adds the tokens that each neuron promotes as it fired, by (layer, neuron).
            attributed: ``neurons`` with a column ``attribution``, which stands in for the loss: both would leave no
                room for tokens.
        """
        where = "at every position" if self.positions is None else f"at position {', '.join(map(str, self.positions))}"
        facts = describe_answer(self) | {
            "probability": f"{format_probability(self.probability)}, loss {self.loss:.4g}",
            "removed": f"{counted(len(self.neurons), 'neuron')}, one at a time: {self.how} {where}",
            "agree": self.agreement(),
        }
        table = self.effect_table(self.neurons if attributed is None else attributed, top, promoted)
        return Sheet.of(
            facts, table, self.provenance if promoted is None else self.provenance.with_settings(basis="folded")
        )

    def agreement(self) -> str:
        """How far attribution says what ablation finds."""
        rank = self.spearman
        known = "" if rank != rank else f"Spearman {rank:.2f} between direct and total effects; "
        return f"{known}{self.opposite:,} of {len(self.neurons):,} have opposite signs"

    def effect_table(self, frame: pd.DataFrame, top: Count | None, promoted: Promoted | None = None) -> Table:
        """One row a neuron: the effects, and the tokens that it promotes as it fired."""
        places = decimals([*frame["direct"][:top], *frame["logit"][:top]])
        effect = Column("direct", "number", places=places, sign=True, colour=True, bars=True)
        notes = ["coefficient: the largest of the text's tokens where the neuron was removed, at that position"]
        notes.append(explain_negative(frame["peak"][:top]))
        return Table.of(
            frame,
            "neuron",
            Column("coefficient", "number", of="peak"),
            Column("at", "count", of="peak_position"),
            effect,
            replace(effect, name="total", of="logit"),
            Column("probability", left=False, of=lambda row: format_change(row["probability"])),
            Column("attribution" if "attribution" in frame else "loss", "number", sign=True),
            None if promoted is None else promoted_column(promoted, (self.target, self.foil)),
            top=top,
            rest="in .neurons",
            caption="; ".join(filter(None, notes)),
        )


def format_change(value: float, digits: int = 1) -> Span:
    """A difference of probabilities in percent, with its sign; one that rounds to nothing has none."""
    shown = f"{value:z.{digits}%}"
    if shown == f"{0.0:.{digits}%}":
        return Span(shown, "soft")
    return Span(f"+{shown}" if value > 0 else shown, "adds" if value > 0 else "takes")


BATCH = 64
CHOSEN_BY = ("direct", "paths")


@checked
@in_turn
def ablate(
    capture: Capture,
    target: Target | Next = None,
    foil: str | SupportsIndex | None = None,
    position: SupportsIndex = -1,
    *,
    neurons: NeuronNames | None = None,
    top: Count | None = 20,
    by: str = "direct",
    how: str | float | Change = "zero",
    positions: SupportsIndex | Iterable[SupportsIndex] | None = None,
    prompt: SupportsIndex | None = None,
    first_token: bool = False,
    batch: Count = BATCH,
    progress: Progress | None = None,
) -> Ablation:
    """What removing each of some neurons, one at a time, does to an answer: its direct and its total effect.

    The direct effect is what :func:`ffnmem.attribute` says: the neuron's own write, read by the frozen final norm. The
    total effect is what the model then says without it, through all later layers and positions. They differ where later
    layers make up for the loss, pass it on, or read it for something else.

    A neuron is removed at every position of the prompt, the beginning-of-sequence token's too, unless ``positions``
    says where. Each row of a batch is one ablation; it restarts above its neuron's layer with all below reused, and
    only positions from the first changed one on are computed. The numbers are those of one :func:`ffnmem.intervene`
    and one forward pass for each neuron, to rounding.

    Args:
        capture: of all layers, without an intervention.
        target: as :func:`ffnmem.attribute` takes it, one token; default: the model's own top token.
        foil: a second token: effects on logit(target) − logit(foil).
        position: where the answer is read.
        neurons: ``"3.17"`` or (layer, neuron) of each; default the ``top`` ones (None: all).
        by: which are top: "direct", the largest direct effects, or "paths", the largest sums over positions of
            :func:`ffnmem.attribute_paths`: a memory that writes at the subject for attention to read has no direct
            effect at the answer.
        how: "zero"; "mean", over the capture's content positions; a number; or a change as ``intervene`` takes one,
            such as ``Mean(store)`` or ``Scale(2.0)``.
        positions: where to remove them, negatives from the prompt's end; none right of ``position``.
        prompt: which one, of a capture of several.
        first_token: take the first token of a target or foil alone.
        batch: ablations at once; memory grows with it and with the prompt's length.
        progress: called with "ablate", the ablations done and all of them.

    Raises:
        InputError: no single target, a partial or outdated capture, an unknown ``how``, no neurons. OutOfRangeError: no
            such layer, neuron or position. UnsupportedModelError: layers that cannot be run by themselves.
    """
    asked = ask(capture, target, foil, position, prompt, first_token)
    change, words = as_how(how, capture)
    cells = choose_cells(asked, positions, prompt)
    chosen = choose_neurons(asked, neurons, top, by)
    found = effects(asked, chosen, change, cells, batch, progress)
    clean_logit, clean_log = (float(x) for x in asked.scores(asked.restart.stream[-1][-1:]))
    frame = effect_frame(chosen, found, clean_logit, clean_log)
    seed = {"seed": change.seed} if isinstance(change, Resample) else {}
    provenance = capture.provenance.with_settings(
        ablated=words, positions="all" if cells is None else list(cells), **seed
    )
    frame.attrs = {"provenance": provenance.to_dict()}
    return Ablation(
        neurons=frame,
        logit=clean_logit,
        probability=float(np.exp(clean_log)),
        loss=-clean_log,
        target=asked.answered.target_text,
        target_id=asked.target,
        foil=asked.answered.foil_text,
        foil_id=asked.foil,
        position=asked.position,
        positions=cells,
        how=words,
        tokens=tuple(asked.capture.token_strings(asked.row)),
        provenance=provenance,
    )


def as_how(how: Any, capture: Capture) -> tuple[Change, str]:
    """What neurons become, and that in words."""
    if not isinstance(how, str):
        change = as_change(how)
        return change, str(change)
    if how not in ("zero", "mean"):
        raise InputError(
            f"how {quoted(how)} is unknown: choose 'zero', 'mean', a number or a change such as Scale(2.0)"
        )
    return (Set(0.0), "set to zero") if how == "zero" else (Mean(capture), "set to their mean")


def choose_cells(
    asked: OneAnswer, positions: SupportsIndex | Iterable[SupportsIndex] | None, prompt: SupportsIndex | None
) -> tuple[int, ...] | None:
    """The positions to change, ascending; None for all. Raises InputError for one that cannot reach the answer."""
    if positions is None:
        return None
    wanted = list(positions) if isinstance(positions, Iterable) else [positions]
    if not wanted:
        raise InputError("positions is empty: name at least one, or leave it out for all")
    found = sorted({asked.capture.position(p, prompt) for p in wanted})
    if found[-1] > asked.position:
        raise InputError(
            f"position {found[-1]} stands right of the answer's, {asked.position}, which cannot see what changes there"
        )
    return tuple(found)


def choose_neurons(
    asked: OneAnswer, neurons: NeuronNames | None, top: int | None, by: str = "direct"
) -> list[tuple[int, int]]:
    """The neurons to remove, by ascending layer and neuron."""
    model = asked.model
    check_choice("by", by, CHOSEN_BY)
    if neurons is None:
        attributed = attribute_paths if by == "paths" else attribute
        found = attributed(asked.capture, asked.target, asked.foil, asked.position, prompt=asked.row)
        frame = found.neurons if top is None else found.neurons.head(top)
        return sorted(zip(frame["layer"].tolist(), frame["neuron"].tolist(), strict=True))
    pairs = list(neurons)
    if not pairs:
        raise InputError("neurons is empty: name some, as in ['3.17', (4, 5)], or leave it out for the top ones")
    return sorted({(model.layer(pair_of(pair)[0]), model.neuron(pair)) for pair in pairs})


def effects(
    asked: OneAnswer,
    neurons: list[tuple[int, int]],
    change: Change,
    cells: tuple[int, ...] | None,
    batch: int,
    progress: Progress | None,
) -> dict[str, Float[np.ndarray, " n"]]:
    """Coefficient, direct effect, the ablated logit and log-probability of each neuron, in float64; and its peak."""
    restart = asked.restart
    first = 0 if cells is None else cells[0]
    direction = asked.directions()
    names = ("coefficient", "direct", "logit", "log", "peak_position", "peak")
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    places = peak_places(asked, cells)
    differences: dict[int, Tensor] = {}
    with torch.no_grad():
        for begin in range(0, len(neurons), batch):
            some = neurons[begin : begin + batch]
            for layer in {layer for layer, _ in some} - set(differences):
                differences = {k: d for k, d in differences.items() if k >= some[0][0]}
                differences[layer] = difference(asked, layer, change, cells)
            delta = torch.stack([differences[layer][first:, neuron] for layer, neuron in some])
            values = torch.stack([asked.model.ffn[layer].values[neuron].detach() for layer, neuron in some])
            outputs = restart.outputs([layer for layer, _ in some], first, delta.unsqueeze(-1) * values.unsqueeze(1))
            final = restart.finish([layer for layer, _ in some], outputs)
            logit, log = asked.scores(final)
            parts["coefficient"].append(torch.stack([asked.coefficients(layer)[neuron] for layer, neuron in some]))
            firings = torch.stack([restart.coefficients[layer][places, neuron] for layer, neuron in some])
            highest = firings.abs().argmax(dim=1)
            parts["peak_position"].append(places[highest])
            parts["peak"].append(firings.gather(1, highest.unsqueeze(1)).squeeze(1))
            directions = torch.stack([direction[layer] for layer, _ in some])
            parts["direct"].append(-at_least_float32(delta[:, -1]) * (at_least_float32(values) * directions).sum(-1))
            parts["logit"].append(logit)
            parts["log"].append(log)
            if progress is not None:
                progress("ablate", begin + len(some), len(neurons))
    return {name: torch.cat(tensors).double().cpu().numpy() for name, tensors in parts.items()}


def peak_places(asked: OneAnswer, cells: tuple[int, ...] | None) -> Int[Tensor, " some"]:
    """Positions where neurons are removed and a token of the text stands; all of them where none does."""
    every = range(asked.position + 1) if cells is None else cells
    content = asked.capture.content[asked.row].tolist()
    return torch.tensor([p for p in every if content[p]] or list(every), device=asked.model.device)


def difference(
    asked: OneAnswer, layer: int, change: Change, cells: tuple[int, ...] | None
) -> Float[Tensor, "pos d_mlp"]:
    """By how much each coefficient of a layer changes when its neuron alone is intervened on."""
    m = asked.restart.coefficients[layer].unsqueeze(0)
    plan = make_plan(asked.model, {(layer, None): change})
    where = None
    if cells is not None:
        where = torch.zeros(m.shape[:2], dtype=torch.bool, device=m.device)
        where[0, list(cells)] = True

    def uniforms(seed: int) -> Float[Tensor, "batch pos"]:
        return torch.tensor(np.random.default_rng([seed, 0]).random(asked.model.n_ctx)[: m.shape[1]]).unsqueeze(0)

    return (plan.layers[layer].applied(m, where, uniforms) - m)[0]


def effect_frame(
    neurons: list[tuple[int, int]], found: dict[str, Float[np.ndarray, " n"]], logit: float, log: float
) -> pd.DataFrame:
    """The table of an Ablation: what each neuron adds, largest total effect first; ties by layer and neuron."""
    frame = pd.DataFrame(
        {
            "layer": [layer for layer, _ in neurons],
            "neuron": [neuron for _, neuron in neurons],
            "coefficient": found["coefficient"],
            "direct": found["direct"],
            "logit": logit - found["logit"],
            "probability": np.exp(log) - np.exp(found["log"]),
            "loss": log - found["log"],
            "peak_position": found["peak_position"].astype(np.int64),
            "peak": found["peak"],
        }
    )
    return frame.sort_values("logit", key=lambda total: -total.abs(), kind="stable", ignore_index=True)
