"""``ffnmem plant`` and ``ffnmem calibrate``: models with known memories, and how well the measures find them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.defaults import CALIBRATION_SEEDS
from ..core.errors import InputError
from ..core.types import PLANTED_KINDS, PlantedKind
from ..show.records import emit
from .options import Count, NewFolder, Output, PlottedOutput, Positive, Seed, option_group
from .progress import show_progress, show_spinner

Number = Annotated[int, Parameter(metavar="N")]
Ratio = Annotated[float, Parameter(metavar="X")]

plant = App(
    name="plant",
    help="""Make a model whose memories were written by hand, with the truth about them.

    Writes a GPT-2 (plant meanings --experts: a Mixtral) whose memories are known into a new folder, to see what a
    method makes of it: the model in Hugging Face layout, which every command takes as --model DIR, and truth.csv (a row
    a neuron), corpus.txt (text that exercises it), facts.jsonl (of plant facts) and planted.json (the settings).

    Examples
      ffnmem plant facts --out planted --site late --seed 1
      ffnmem plant meanings --out planted --n-features 32 --neurons 48 --json

    --csv has one row for each sort of neurons in each layer: layer, what the truth says of it, neurons. --json has
    these and all else.
    """,
)


@option_group
class MeaningSettings:
    """The library's arguments of planted meanings.

    Attributes:
        n_features: Concepts, each a set of words.
        superposition: Features per dimension that they share.
        words: Words of a concept.
        neurons: Per layer.
        n_layers: How many layers.
        n_tokens: Length of the corpus, about.
        noise: On words, relative to their size.
        experts: Of each layer, which share its neurons; 0 for none.
    """

    n_features: Number = 128
    superposition: Ratio = 1.5
    words: Number = 8
    neurons: Number = 192
    n_layers: Number = 2
    n_tokens: Number = 60_000
    noise: Ratio = 0.7
    experts: Number = 0


@option_group
class RoleSettings:
    """The library's arguments of planted roles.

    Attributes:
        n_words: Words in all.
        neurons: Per layer.
        per_role: Neurons of each role in a layer.
        n_layers: How many layers.
        n_tokens: Length of the corpus, about.
        noise: On keys and values, relative to their size.
    """

    n_words: Number = 1000
    neurons: Number = 256
    per_role: Number = 12
    n_layers: Number = 3
    n_tokens: Number = 60_000
    noise: Ratio = 0.3


@option_group
class FactSettings:
    """The library's arguments of planted facts.

    Attributes:
        site: Where facts are recalled: early (at the subject's last token), late (at the last token) or both (half
            each).
        n_subjects: Each with one fact a relation.
        n_relations: Facts of each subject.
        n_objects: Different targets of a relation.
        n_none: Neurons without a role beside those of the facts.
        noise: On all weights, relative to their size.
    """

    site: Literal["early", "late", "both"] = "early"
    n_subjects: Number = 40
    n_relations: Number = 3
    n_objects: Number = 8
    n_none: Number = 40
    noise: Ratio = 0.05


@option_group
class PlantedOutput(Output):
    """What is written and printed.

    Attributes:
        out: A new folder for the model and its truth.
    """

    out: Annotated[NewFolder, Parameter(alias="-o")]
    seed: Seed = 0

    def plant(self, kind: PlantedKind, settings: object) -> None:
        """Make, save and describe a model."""
        with show_spinner(f"planting {kind}"):
            planted = fm.planted.plant(kind, seed=self.seed, **vars(settings))
            planted.recalled()  # is asked of the model while the spinner turns
            planted.save(self.out)
        emit(
            planted,
            self.form,
            sheet=lambda: planted.sheet(self.out),
            data=lambda: planted.to_dict(folder=self.out),
            frame=lambda: planted.counts,
        )


@plant.command
def meanings(*, settings: MeaningSettings = MeaningSettings(), output: PlantedOutput) -> None:
    """Plant neurons of one concept, of 2, 3, 4 or 8, and dead ones.

    Examples
      ffnmem plant meanings --out planted --superposition 2
      ffnmem plant meanings --out planted --experts 4
    """
    output.plant("meanings", settings)


@plant.command
def roles(*, settings: RoleSettings = RoleSettings(), output: PlantedOutput) -> None:
    """Plant prediction, suppression, partition, entropy, position, token-frequency and token-detector neurons.

    Others are dead, or have no role.

    Examples
      ffnmem plant roles --out planted --per-role 6
    """
    output.plant("roles", settings)


@plant.command
def facts(*, settings: FactSettings = FactSettings(), output: PlantedOutput) -> None:
    """Plant subjects, relations and targets, one neuron a fact.

    Examples
      ffnmem plant facts --out planted --site both
    """
    output.plant("facts", settings)


def calibrate(
    *,
    kind: Annotated[tuple[PlantedKind, ...], Parameter(show_default=False)] = PLANTED_KINDS,
    seed: Annotated[tuple[Seed, ...], Parameter(show_default=False)] = CALIBRATION_SEEDS,
    superposition: tuple[Positive, ...] | None = None,
    neurons: Count | None = None,
    experts: Count | None = None,
    draws: Count | None = None,
    output: PlottedOutput = PlottedOutput(),
) -> None:
    """How well the measures recover planted meanings, roles and facts.

    Builds models whose memories are known, runs the toolkit's measures on them, and says how well they did.

    Meanings: AUROC of each measure of polysemanticity for polysemantic against monosemantic neurons, its rank
    correlation with the planted number, its precision at 20; the verdicts; how often each null is rejected where
    nothing is to be found. Roles: precision and recall. Facts: how often attribution, at the last token and along
    paths, ablation and knowledge neurons rank the planted neuron first. With the defaults it takes some minutes.

    Examples
      ffnmem calibrate --plot calibration.png
      ffnmem calibrate --kind facts --seed 7 --json

    --csv has one row a number: table, name, setting, score, value, low, high. --json has all tables and the settings.

    Args:
        kind: meanings, roles or facts (repeatable). [default: all]
        seed: A model for each (repeatable). [default: 110 to 114; thresholds were chosen on 0 to 4]
        superposition: Features per dimension of the models of meanings (repeatable). [default: 1, 1.5, 2, 2.5]
        neurons: Per layer of these models. [default: 192]
        experts: Of each layer of these models, which share its neurons. [default: none]
        draws: Of their bootstraps and nulls. [default: 200]
    """
    options: dict[str, Any] = {
        "superposition": superposition, "neurons": neurons, "experts": experts, "draws": draws,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    if given and "meanings" not in kind:
        raise InputError(f"--{next(iter(given))} is of --kind meanings only: leave it out")
    with show_progress() as report:
        calibration = fm.planted.calibrate(kind, seeds=seed, progress=report, **given)
    output.emit(calibration)
