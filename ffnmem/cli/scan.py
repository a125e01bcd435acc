"""``ffnmem scan``, ``merge``, ``store``, ``moment`` and ``lens``: passes over a corpus, what they left."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.number_text import format_bytes
from ..core.types import Engine, ScanDtype, StoreForm
from ..show.records import emit, write
from .guard import note
from .options import (
    Corpus,
    CorpusReading,
    Count,
    EditFile,
    Json,
    Layers,
    Neurons,
    NewFile,
    NewFolder,
    OutFolder,
    Output,
    PlottedOutput,
    Seed,
    Shard,
    StoreFolder,
    TextChoice,
    option_group,
)
from .progress import noting, show_progress, show_spinner


@option_group
class ScanSettings(CorpusReading):
    """How a corpus is scanned, as the library's arguments of it.

    Attributes:
        k: Examples at each end of a neuron.
        dtype: Numeric type of the pass. After bfloat16 the candidates are run again in float32, so examples are exact.
        batch_tokens: Tokens of one forward pass.
        workers: Processes that share the pass.
        engine: Where workers run: processes of this machine, or a Ray cluster (pip install 'ffnmem[ray]').
        shard: Only the I-th of N parts, to be merged later.
        project: End with the tokens that all values promote, or leave them for when they are asked for. [default: end
            with them where that takes about a second, as of atlas]
    """

    k: Count = 20
    dtype: ScanDtype = "float32"
    seed: Seed = 0
    batch_tokens: Count = 2048
    workers: Count = 1
    engine: Engine = "local"
    shard: Shard = (0, 1)
    project: Annotated[bool | None, Parameter(negative="--no-project")] = None


def scan(
    corpus: Corpus,
    /,
    *,
    out: OutFolder,
    settings: ScanSettings = ScanSettings(),
    model: TextChoice = TextChoice(),
    output: Json = Json(),
) -> None:
    """Read a corpus once; keep what fires every neuron.

    Reads CORPUS and leaves a store: what fires every neuron, how often and how strongly, what it writes. Gated neurons
    (Llama, Gemma) are also told apart by the signs of gate and linear part, with N examples of each case.

    CORPUS is a .txt, .jsonl, .csv or .parquet file, each also with .gz or .zst behind it; a folder of them, or a quoted
    pattern; atlas, the corpus that comes with ffnmem; hf:OWNER/NAME/CONFIG:SPLIT, a data set of the Hugging Face hub;
    or a folder that ffnmem pack wrote. The scan can be stopped at any moment: the same command goes on where it was.

    Examples
      ffnmem scan atlas --out runs/atlas
      ffnmem scan texts.jsonl --text body --out runs/texts --context 64
      ffnmem scan "texts/*.jsonl" --out runs/3 --shard 3/8

    Args:
        out: The store's folder; made if it is not there.
    """
    from ..scanning.jobs import expected_bytes  # needs torch

    loaded = model.load()
    size = format_bytes(expected_bytes(loaded, settings.k, settings.context, settings.dtype))
    with show_progress() as report:
        report = noting(f"will write about {size} into {out}", "scan", report)
        store = fm.scan(loaded, corpus, out, progress=report, **vars(settings))
    emit(store, output.form, sheet=store.outcome, data=lambda: store.manifest)


def merge(stores: list[str], /, *, out: OutFolder, output: Json = Json()) -> None:
    """Join the shards of a scan into one store.

    Joins stores that hold different shards of one scan, in any order. Model, tokenizer, corpus and settings must agree.
    The result is, byte for byte, what one scan of all of it gives; until every shard is in, it says that it is a part.

    Examples
      ffnmem merge runs/0 runs/1 --out runs/all

    Args:
        stores: The folders of the scans.
        out: The folder of the joined store.
    """
    with show_spinner(f"joining {len(stores)} stores"):
        joined = fm.merge(stores, out)
    emit(joined, output.form, sheet=joined.outcome, data=lambda: joined.manifest)


store = App(name="store")


@store.default
def describe_store(store: StoreFolder, /, *, check: bool = False, output: PlottedOutput = PlottedOutput()) -> None:
    """What a store holds: settings, dead neurons, firing rates by layer.

    Describes STORE, the folder of a scan: what was scanned, how, and how often the neurons of each layer fire. A neuron
    fires at a token where its pre-activation is above 0; dead is one that never did. Firing rates are given as
    quantiles over a layer's neurons: half of them fire at fewer tokens than the median. A gated neuron's pre-activation
    is its gate's: a dead one may still write a little, with either sign; and how often each of the four cases of signs
    of gate and linear part occurs is told as a mean over all neurons.

    Examples
      ffnmem store runs/atlas
      ffnmem store runs/atlas --check --plot layers.png
      ffnmem store runs/atlas --csv

    --csv has one row a layer: layer, neurons, dead, firing_rate_5, firing_rate_25, firing_rate_50, firing_rate_75,
    firing_rate_95. --json has these and all else.

    Args:
        check: Read every file whole and check it first; what is damaged is named.
    """
    opened = fm.open_store(store)
    if check:
        opened.verify()
    output.emit(opened, sheet=lambda: opened.sheet(checked=check), data=lambda: opened.to_dict(checked=check))


@store.command
def export(
    store: StoreFolder,
    form: StoreForm,
    /,
    *,
    out: Annotated[NewFolder, Parameter(alias="-o")],
    neurons: Neurons | None = None,
) -> None:
    """Write a store in the form that another program reads.

    Writes what other programs read of STORE into a new folder, and prints its path. neuronpedia: dashboard records as
    SAEDashboard writes them; delphi: its latent cache. The model reads text again for both.

    Examples
      ffnmem store export runs/atlas neuronpedia -o out --neurons 3.17,5.97

    Args:
        form: Of which program.
        out: The new folder.
    """
    opened = fm.open_store(store)
    with show_progress() as progress:
        written = opened.export(form, out, neurons=neurons, progress=progress)
    write(f"{written}\n")


@option_group
class MomentText(CorpusReading):
    """The text of a second moment, as the library's arguments of it.

    Attributes:
        tokens: Stop after so many tokens; ten times d_mlp go most of the way.
        shard: Only the I-th of N parts of the text.
    """

    tokens: Count | None = None
    shard: Shard = (0, 1)


def moment(
    corpus: Corpus = "atlas",
    /,
    *,
    out: EditFile,
    layer: Layers | None = None,
    text: MomentText = MomentText(),
    model: TextChoice = TextChoice(),
    output: Output = Output(),
) -> None:
    """Read text for what editors need: C = E[m mᵀ] of every layer.

    Reads CORPUS once and writes the second moments of the coefficients of every layer into a file, for --moment of
    ffnmem edit and ffnmem evaluate. The one of atlas ships with it.

    The pass can be stopped at any moment: the same command goes on where it was. How much text is enough: rank below
    d_mlp is too little, twice d_mlp tokens are enough.

    Examples
      ffnmem moment texts.jsonl --text body --tokens 20000 -o moments.safetensors
      ffnmem moment atlas --layer 0 --tokens 500 -o first.safetensors --json

    --csv has layer, count, trace, condition, rank, effective_rank; --json these, the text and the provenance.

    Args:
        out: The file to write: FILE.safetensors.
        layer: Of this layer only (repeatable).
    """
    loaded = model.load()
    widths = [
        loaded.ffn[name].d_mlp
        for name in (range(loaded.n_layers) if layer is None else {loaded.layer(n) for n in layer})
    ]
    size = format_bytes(sum(8 * width * (width + 1) / 2 for width in widths))  # packed triangles in float64
    with show_progress() as report:
        report = noting(f"will write about {size} into {out}", "moment", report)
        moments = fm.editing.second_moment(loaded, corpus, out, layers=layer, progress=report, **vars(text))
    emit(moments, output.form, sheet=lambda: moments.sheet(moments.to_frame(), out))
    note(f"wrote {out}")


@option_group
class LensText(CorpusReading):
    """The text of a lens, as the library's arguments of it.

    Attributes:
        batch_tokens: Tokens of a page of text, pads included; time and memory grow with it, the error falls with its
            square root.
        pages: How many pages the rows of a matrix share.
    """

    batch_tokens: Count = 2048
    pages: Count = 16
    seed: Seed = 0


def lens(
    corpus: Corpus = "atlas",
    /,
    *,
    out: EditFile | None = None,
    half: bool = False,
    export: NewFile | None = None,
    text: LensText = LensText(),
    model: TextChoice = TextChoice(),
    output: Output = Output(),
) -> None:
    """Fit a Jacobian lens for a model, for --lens jacobian.

    Takes the Jacobians of a model's last residual stream by that above every layer, on average over CORPUS, for --lens
    of ffnmem project, neuron and report. The one of atlas ships with it.

    It takes as many backward passes as the model is wide (d_model), each over one page of text, and can be stopped at
    any moment: the same command goes on where it was. Of each layer the table has the error (a standard error relative
    to the matrix), the norm over that of the identity, and the share of its square that is a multiple of the identity,
    all there is to it in the logit lens.

    Examples
      ffnmem lens texts.jsonl --text body --model gpt2
      ffnmem lens atlas --batch-tokens 256 -o lens.safetensors --json
      ffnmem lens atlas --export atlas_jacobian_lens.pt

    --csv has layer, error, norm, identity; --json these and the provenance.

    Args:
        out: The file to write: FILE.safetensors. [default: one in the cache, where --lens jacobian finds it]
        half: Write float16, half the size.
        export: Also write the lens as other programs publish theirs, which --lens reads too: FILE.pt, in float16.
    """
    loaded = model.load()
    with show_progress() as report:
        fitted = fm.vocabulary.jacobian_lens(
            loaded, corpus, out, dtype="float16" if half else "float32", progress=report, **vars(text)
        )
    if export is not None:
        note(f"wrote {fitted.publish(export)}")
    emit(fitted, output.form)
    note(f"wrote {out}" if out is not None else f"kept for {loaded.name} ({loaded.fingerprint})")
