"""``Store``: a finished scan on disk, asked neuron by neuron."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pandas as pd

from ..core.checked_files import check_tensors, digest_of
from ..core.errors import (
    FfnmemError,
    FileError,
    InputError,
    ModelError,
    check_choice,
    check_index,
    counted,
    quoted,
    warn,
)
from ..core.files import user_folder
from ..core.neuron_names import (
    Experts,
    LayerName,
    NeuronName,
    add_experts,
    is_pair,
    is_place,
    layer_of,
    neuron_index,
    place_of,
)
from ..core.progress import Progress
from ..core.provenance import experts_in
from ..core.token_text import printable
from ..core.types import (
    CASES,
    EXAMPLE_KINDS,
    LOGIT,
    CoefficientSign,
    Count,
    Whole,
    checked,
)
from ..corpus.batches import Sequences
from ..corpus.packed import Packed, open_packed
from ..models.model import Model
from ..show.result import Result
from ..vocabulary.lenses import Lens
from ..vocabulary.projections import COLUMNS as PROJECTED
from .contexts import Contexts, Window
from .manifest import check_agreement, check_file, read_manifest
from .neuron import Neuron, Scanned
from .neuron_sides import side_signs
from .projected import Source, check_scanned, is_table_of, lacking, write_values
from .settings import ScanSettings
from .shading import is_quick, shadable, shaded
from .state import COLUMNS, LayerState
from .state_file import StateFile
from .statistics import Cuts, histogram_columns, position_columns, token_columns
from .tables import (
    BANDS,
    CORPUS,
    STATE,
    STATS,
    TOKENIZER,
    VALUES,
    NeuronTable,
    example_frame,
    example_rows,
    plain_rows,
)

LAYERS_KEPT = 8  # some 13 MB each for GPT-2 small
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHADED = 20
"""Cards of which every token of the examples is shaded on a page: of SmolLM2 that takes minutes, and 250 kB a card."""
SHADES = "coefficients at every token of an example"
HARDLY = 0.1  # of the mean share of a layer's experts: below, an expert is hardly used
ALL = "all"  # among what was checked
RATES = tuple(f"firing_rate_{100 * quantile:.0f}" for quantile in QUANTILES)


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Store(Scanned, Result):
    """What one scan found. Made by :func:`ffnmem.scan`, :func:`ffnmem.merge`, :func:`ffnmem.open_store`.

    Attributes:
        folder: where it lies.
        manifest: its settings, provenance and counts, as they were written.

    A store that was opened with its model holds it, and so does one that had to load it.
    """

    folder: Path
    manifest: Mapping[str, Any]
    _layers: dict[int, LayerState] = field(default_factory=dict, repr=False)
    _tables: dict[tuple[Any, ...], NeuronTable] = field(default_factory=dict, repr=False)
    _checked: set[tuple[Any, ...]] = field(default_factory=set, repr=False)
    _source: Source = field(default_factory=Source, repr=False)

    no_file = "it is its folder; fm.open_store opens that"
    heading = "folder n_documents n_tokens n_sequences complete read_as kept checked"
    tables: ClassVar = {
        "layers": f"layer neurons never_fired {' '.join(RATES)}",
        "cases": "case share",
        "balance": "layer experts least median most hardly_used",
        "routing": "|layer expert tokens share neurons never_fired firing_rate",
        "problems": "count kind first meaning",
    }

    # -- what it is ----------------------------------------------------------------------------------------------

    def identified(self) -> tuple[str, str]:
        """Its folder and a hash of its manifest, by which results that hold it are saved and loaded."""
        return str(self.folder), digest_of(self.manifest)[:12]

    @property
    def model(self) -> str:
        """The name of the model that was scanned."""
        return str(self.manifest["model"])

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def n_layers(self) -> int:
        return int(self.manifest["layers"])

    @property
    def n_tokens(self) -> int:
        """Content tokens seen: no BOS, no special tokens."""
        return int(self.manifest["tokens"])

    @property
    def gated(self) -> bool:
        """Whether its neurons have gates."""
        return bool(self.manifest.get("gated", False))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of examples that it has: of gated neurons the sign cases too."""
        return (*EXAMPLE_KINDS, *CASES) if self.gated else EXAMPLE_KINDS

    @property
    def complete(self) -> bool:
        """Whether the whole corpus was scanned; a shard is not complete."""
        return bool(self.manifest["units"]["done"] == self.manifest["units"]["total"])

    @property
    def provenance(self) -> dict[str, Any]:
        return dict(self.manifest["provenance"])

    @cached_property
    def settings(self) -> ScanSettings:
        return ScanSettings.from_dict(self.manifest["settings"])

    @cached_property
    def experts(self) -> Experts:
        """The sizes of layers with experts, by layer."""
        return experts_in(self.provenance)

    def d_mlp(self, layer: int) -> int:
        return int(self.manifest["d_mlp"][self.layer(layer)])

    def layer(self, layer: LayerName) -> int:
        """``layer`` as an index, negatives from the end, or named by a place in it (``"blocks.3.mlp.hook_post"``).

        Raises: OutOfRangeError: no such layer. InputError: a text that names none.
        """
        return check_index("layer", layer_of(layer, self.n_layers), self.n_layers, f"the store of {self.model}")

    def index(self, layer: LayerName | NeuronName, neuron: SupportsIndex | None = None) -> tuple[int, int]:
        """Layer and neuron as indices, as all methods take them: two numbers, or one name such as ``"3.17"``.

        Raises: InputError: what names no neuron. OutOfRangeError: one that is not there.
        """
        layer, neuron = place_of(layer, neuron)
        row = self.layer(layer)
        of = f"layer {row} of the store of {self.model}"
        return row, neuron_index(neuron, self.d_mlp(row), self.experts.get(row), of)

    def check_model(self, model: Model) -> None:
        """Raise InputError if the store is of another model, or of other weights."""
        check_scanned(model, self.folder, self.manifest)

    def hold(self, model: Model) -> None:
        """Ask this model what the files do not answer; raises InputError if it is not the one that was scanned."""
        self.check_model(model)
        self._source.held = model

    def read_model(self) -> Model:
        """The model that was scanned: the one that the store was opened with, else the one that is loaded by its name.

        Raises: ModelError: it cannot be loaded by its name. InputError: what has that name now is another model.
        """
        return self._source.read(self.folder, self.manifest)

    @property
    def verdict(self) -> str:
        """How many neurons never fired, what is amiss, and a neuron to look at: its coefficients' tail is heaviest."""
        stats, units = self.stats(), self.manifest["units"]
        never, wrong = int(stats["dead"].sum()), sum(problem.count for problem in self.corpus.problems)
        neurons = f"{len(stats):,} neurons of {printable(self.model)}"
        peaked = stats.nlargest(1 if self.n_tokens else 0, "kurtosis")
        said = (
            f"{never:,} of {neurons} never fired"
            if never
            else f"{'Each' if self.n_tokens else 'None'} of {neurons} fired somewhere",
            f" in {counted(self.n_tokens, 'token')} of {printable(self.manifest['corpus']['source'])}.",
            "" if self.complete else f" This is {units['done']} of {units['total']} parts of it: merge joins them.",
            f" The text has {counted(wrong, 'problem')}, listed below." if wrong else "",
            *(f" One to look at (ffnmem neuron): {one.layer}.{one.neuron}." for one in peaked.itertuples()),
        )
        return "".join(said)

    @property
    def n_documents(self) -> int:
        return int(self.manifest["corpus"]["documents"])

    @property
    def n_sequences(self) -> int:
        return int(self.manifest["sequences"])

    @property
    def read_as(self) -> dict[str, Any]:
        """How text was cut and run; ``rescored``: in which dtype examples were run again, if they were."""
        asked, rescored = self.settings, self.manifest["rescored_in"]
        found = {name: getattr(asked, name) for name in ("context", "prepend_bos", "dtype", "seed")}
        return found | ({"rescored": rescored} if rescored else {})

    @property
    def kept(self) -> dict[str, int]:
        """How much of each kind a scan keeps."""
        asked = self.settings
        found = {
            "top_and_bottom": asked.k,
            "random_sequences": min(asked.sample, self.n_sequences),
            "random_positions": asked.draws,
        }
        return found | {"frequent_tokens": len(asked.frequent)}

    @property
    def checked(self) -> str:
        """Of its files, what was compared with what the scan wrote."""
        return "all files" if (ALL,) in self._checked else "sizes and tables; --check reads every file"

    @property
    def layers(self) -> pd.DataFrame:
        """By layer how many neurons never fired, and quantiles over all of the share of tokens at which one fires."""
        by_layer = self.stats().groupby("layer")
        rates = by_layer["firing_rate"].quantile(list(QUANTILES)).unstack()
        rates.columns = list(RATES)
        counts = pd.DataFrame({"neurons": by_layer.size(), "never_fired": by_layer["dead"].sum()})
        return counts.join(rates).reset_index()

    @property
    def cases(self) -> pd.DataFrame | None:
        """How often each sign case of gate and linear part occurs: the share of positions, the mean over all neurons;
        None where neurons have no gates."""
        if not self.gated:
            return None
        shares = self.stats()[[f"share_{column}" for column in COLUMNS]].mean()
        return pd.DataFrame({"case": CASES, "share": shares.to_numpy()})

    @property
    def balance(self) -> pd.DataFrame | None:
        """How evenly tokens are routed to the experts of a layer: the least, median and largest share of one;
        ``hardly_used``: those with less than 10% of the layer's mean share. None where there are no experts."""
        if not self.experts:
            return None
        rows = []
        for layer, found in self.routing().groupby("layer"):
            shares = found.loc[found["expert"] < self.experts[int(layer)].experts].set_index("expert")["share"]
            few = shares.index[shares < HARDLY * shares.mean()].astype(str)
            ends = {"least": shares.min(), "median": shares.median(), "most": shares.max()}
            rows.append({"layer": layer, "experts": len(shares), **ends, "hardly_used": ", ".join(few) or None})
        return pd.DataFrame(rows)

    def shown_routing(self, top: int | None) -> pd.DataFrame | None:
        """How much of the text each expert was given."""
        return self.routing().head(len(self.stats()) if top is None else top) if self.experts else None

    def shown_problems(self, top: int | None) -> pd.DataFrame:
        """What of the text could not be read, or only in part."""
        return self.corpus.shown_problems(top)

    # -- the files behind it -------------------------------------------------------------------------------------

    @cached_property
    def corpus(self) -> Packed:
        packed = open_packed(self.folder / CORPUS, str(self.manifest["tokenizer_hash"]))
        if packed.digest != self.manifest["corpus"]["digest"]:
            raise FileError(f"{packed.folder} holds another corpus than the one scanned: scan again")
        return packed

    @cached_property
    def sequences(self) -> Sequences:
        return Sequences(self.corpus, self.settings.context, self.manifest["bos"])

    @cached_property
    def contexts(self) -> Contexts:
        """Token texts and contexts, cut from the corpus."""
        return Contexts.read(self.verified_path(TOKENIZER), self.sequences)

    @cached_property
    def state(self) -> StateFile:
        """The scan's arrays, each checked by the header, which is the one that the manifest knows, when it is read."""
        state = StateFile(self.folder / STATE)
        check_agreement(self.folder, self.manifest, state)
        return state

    def verified_path(self, name: str) -> Path:
        """The path of one of the store's files: checked to be what the manifest says when it is asked for first, and
        again where another has taken its place. Raises FileError; InputError for a name that is none of its files."""
        if name not in self.manifest["files"]:
            raise InputError(f"the store has no file {quoted(name)}: choose from {', '.join(self.manifest['files'])}")
        path = self.folder / name
        key = (name, *identity_of(path))
        if key not in self._checked:
            check_file(path, self.manifest["files"][name], content=True)
            self._checked.add(key)
        return path

    def view(self, layer: int) -> LayerState:
        """One layer's arrays, each read when first asked for; a few layers are kept."""
        if layer not in self._layers:
            while len(self._layers) >= LAYERS_KEPT:
                self._layers.pop(next(iter(self._layers)))
            self._layers[layer] = self.state.layer(layer)
        return self._layers[layer]

    def table(self, name: str, layer: int | None = None, neuron: int | None = None) -> pd.DataFrame:
        """Rows of one of the store's Parquet files: all, a layer's or a neuron's."""
        return self.opened(name).table(layer, neuron).to_pandas()

    def opened(self, name: str) -> NeuronTable:
        """One of the store's Parquet files, opened once; and again where another has taken its place."""
        own = name in self.manifest["files"]
        path = self.verified_path(name) if own else self.folder / name
        key = (name, *identity_of(path))
        if key not in self._tables:
            again = "scan again" if own else "remove it, or measure again (ffnmem polysemanticity)"
            self._tables[key] = NeuronTable(path, again)
        return self._tables[key]

    # -- questions -----------------------------------------------------------------------------------------------

    def stats(self, layer: LayerName | NeuronName | None = None, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """One row a neuron: layer, neuron, count, mean, std, skewness, kurtosis (excess), min, max of the coefficient,
        firing_rate (share of pre-activations above 0), zero_share, dead (never above 0), and ``pre_`` the same
        moments of the pre-activation. Of all neurons, a layer, or one neuron. Raises OutOfRangeError.

        The pre-activation of a gated neuron is its gate's: it fires where its gate is open, and a dead one, whose gate
        never opened, may still write a little (SiLU and GELU are not 0 below 0), with either sign. Gated neurons have
        besides ``linear_`` the same moments of the linear part, and of each sign case its share of positions and its
        mean coefficient: ``share_`` and ``mean_`` before gate_pos_linear_pos, gate_pos_linear_neg, gate_neg_linear_pos
        and gate_neg_linear_neg, where pos is above 0 and neg is not. The shares sum to 1; a case that never occurs
        has no mean (NaN).

        Where layers have experts, ``expert`` is whose neuron it is, and everything but ``routed`` (the share of tokens
        that are routed to that expert) is of the ``count`` tokens that are: NaN where there are none."""
        place: tuple[int, ...]
        if layer is None:
            if neuron is not None:
                raise InputError("a neuron needs its layer: stats(layer, neuron)")
            place = ()
        elif neuron is None and (not isinstance(layer, str | Sequence) or is_place(layer)):
            place = (self.layer(layer),)
        else:
            place = self.index(layer, neuron)
        return add_experts(self.table(STATS, *place), self.experts)

    def routing(self) -> pd.DataFrame:
        """How much of the text each expert was given: one row an expert of the layers that have some, with layer,
        expert (its place in ``model.ffn[layer].experts``, shared ones, which every token goes to, last as one),
        tokens, share (of all tokens; those of a layer's routed experts sum to how many a token is routed to), neurons,
        never_fired (how many of these) and firing_rate (the mean of its neurons', of the tokens routed to it).

        Raises: InputError: a model without experts.
        """
        if not self.experts:
            raise InputError(f"{self.model} has no experts, and so no router")
        stats = self.stats().dropna(subset=["expert"])
        by_expert = stats.groupby(["layer", "expert"])
        columns = {
            "tokens": by_expert["count"].first(),
            "share": by_expert["routed"].first(),
            "neurons": by_expert.size(),
            "never_fired": by_expert["dead"].sum(),
            "firing_rate": by_expert["firing_rate"].mean(),
        }
        return pd.DataFrame(columns).reset_index().astype({"expert": np.int64})

    def signs(self, layer: LayerName | NeuronName, neuron: SupportsIndex | None = None) -> tuple[CoefficientSign, ...]:
        """The signs of a neuron's sides, the stronger first: of a gated neuron "positive", "negative" or both, without
        one that stays below a quarter of the other; of a classic neuron "positive". Raises OutOfRangeError."""
        return side_signs(self.stats(*self.index(layer, neuron)).iloc[0].to_dict(), self.gated)

    def examples(
        self,
        layer: LayerName | NeuronName,
        neuron: SupportsIndex | None = None,
        *,
        kind: str | Sequence[str] | None = None,
        k: Count | None = None,
        bands: Sequence[float] = BANDS,
        context: Whole = 12,
    ) -> pd.DataFrame:
        """Where a neuron fires.

        Args:
            layer, neuron: which; or the neuron's name alone, such as ``"3.17"``.
            kind: any of "top" and "bottom" (the sequences of its largest and smallest coefficient), "quantile" (random
                sequences from each band of the distribution of sequences' largest, and of their smallest,
                coefficient) and "random" (random positions); of gated neurons also "gate+ linear+", "gate+ linear-",
                "gate- linear+" and "gate- linear-": the sequences of the largest magnitude of the coefficient where
                the gate's pre-activation and the linear part have these signs (+ above 0, - not). Default: all.
            k: rows a kind, and a band; default: all kept of top, bottom and each case, 3 a band, 10 random ones.
            bands: ascending quantiles from 0 to 1 between which bands lie.
            context: tokens of context on each side.

        Returns:
            Columns layer, neuron, kind, rank, coefficient, sequence, position, token, context, and for
            quantiles extreme ("max"/"min"), band_low and band_high. Of gated neurons also gate (its pre-activation),
            linear (the linear part) and case. Numbers are exact in float32 whatever dtype the scan ran in; which
            sequences of a half-precision scan are candidates is its own judgement.

        Raises: OutOfRangeError, InputError, FileError.

        Source: Gerstner and Schütze 2025 for the sign cases.
        """
        frame = self.example_rows(*self.index(layer, neuron), kind=kind, k=k, bands=bands)
        return self.with_contexts(frame, self.windows(frame, context))

    def example_rows(
        self,
        layer: int,
        neuron: int,
        *,
        kind: str | Sequence[str] | None = None,
        k: Count | None = None,
        bands: Sequence[float] = BANDS,
    ) -> pd.DataFrame:
        """:meth:`examples` of indices, without texts."""
        most = dict.fromkeys(self.check_kinds(kind), k)
        return example_frame(example_rows(self.state, self.view(layer), (layer, neuron), most, bands), self.gated)

    def check_kinds(self, kind: str | Sequence[str] | None) -> list[str]:
        """Kinds of examples that the store has, all for None; raises InputError."""
        kinds = list(self.kinds) if kind is None else [kind] if isinstance(kind, str) else list(kind)
        for name in kinds:
            if name in CASES and not self.gated:
                raise InputError(
                    f"kind {quoted(name)} is of gated neurons, which {self.model} does not have: {self.folder}"
                )
            check_choice("kind", name, self.kinds)
        return kinds

    def with_contexts(self, frame: pd.DataFrame, windows: Sequence[Window]) -> pd.DataFrame:
        """Examples with the columns token and context."""
        frame.insert(7, "token", [window.tokens[window.at] for window in windows])
        frame.insert(8, "context", [window.text for window in windows])
        frame.attrs = {"provenance": self.provenance}
        return frame

    def windows(self, examples: pd.DataFrame, width: int) -> list[Window]:
        """The tokens around each row of examples, ``width`` on each side."""
        places = zip(examples["sequence"].tolist(), examples["position"].tolist(), strict=True)
        return self.contexts.windows(places, width)

    def histogram(self, layer: LayerName | NeuronName, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """How often each range of the coefficient occurred: low, high, count. Bins are four to a doubling of the
        magnitude, the same for all neurons, and closed at the end that is nearer to zero: low ≤ x < high from 0 on,
        low < x ≤ high below it (``attrs["closed"]``). 0 is counted above 0, −0 below it."""
        row, column = self.index(layer, neuron)
        frame = pd.DataFrame(self.histograms(row, column, column + 1)[0])
        frame.attrs["closed"] = "nearer to zero"
        return frame

    def histograms(self, layer: int, first: int, last: int) -> Cuts:
        """:meth:`histogram` of neurons ``first`` up to ``last`` of a layer, below each other."""
        return histogram_columns(self.view(layer).histogram[first:last])

    def by_token(self, layer: LayerName | NeuronName, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """Mean coefficient at each of the corpus's most frequent tokens: token, token_id, count, mean; largest
        first."""
        row, column = self.index(layer, neuron)
        return pd.DataFrame(self.token_means(row, column, column + 1)[0])

    def token_means(self, layer: int, first: int, last: int) -> Cuts:
        """:meth:`by_token` of neurons ``first`` up to ``last`` of a layer, below each other."""
        ids = np.array(self.settings.frequent, np.int64)
        view = self.view(layer)
        counts = view.token_counts[view.expert[first:last]].T
        return token_columns(view.token_sums[:, first:last], counts, ids, self.contexts.strings(ids))

    def by_position(self, layer: LayerName | NeuronName, neuron: SupportsIndex | None = None) -> pd.DataFrame:
        """Mean coefficient by position in the sequence: positions, count, mean."""
        row, column = self.index(layer, neuron)
        return pd.DataFrame(self.position_means(row, column, column + 1)[0])

    def position_means(self, layer: int, first: int, last: int) -> Cuts:
        """:meth:`by_position` of neurons ``first`` up to ``last`` of a layer, below each other."""
        view = self.view(layer)
        counts = view.bucket_counts[view.expert[first:last]].T
        return position_columns(view.bucket_sums[:, first:last], counts, self.settings.context)

    def values(
        self, layer: LayerName | NeuronName, neuron: SupportsIndex | None = None, *, lens: Lens = LOGIT
    ) -> pd.DataFrame:
        """What the neuron writes, in tokens: the columns of :func:`ffnmem.project`, ten promoted and ten suppressed.
        Of a gated neuron also what excites its two keys: the sides "key" (of the linear part) and "gate".

        Read from the store's table; where it has none, the model is asked, which is loaded by its name if the store was
        not opened with it. Raises OutOfRangeError, and ModelError where there is neither.

        Through another ``lens``, as :func:`ffnmem.project` takes it, the model is always asked for the value; the keys
        stay. Raises InputError where there is no such lens."""
        index = self.index(layer, neuron)
        if lens != LOGIT:
            model = self.model_for()
            value = self._source.project(model, *index, self._source.lens(model, lens))
            if not self.gated:
                return value
            whole = self.values(*index)
            return pd.concat([value, whole[whole["side"] != "value"]], ignore_index=True)
        if self.projected:
            return self.table(VALUES, *index)
        return self._source.project(self.model_for(), *index)

    def model_for(self, what: str = "the tokens that a value promotes") -> Model:
        """:meth:`read_model`, which says what it was needed for where it fails."""
        try:
            return self.read_model()
        except FfnmemError as error:
            raise lacking(what, self.folder, self.manifest, error) from None

    @property
    def projected(self) -> bool:
        """Whether the table of what all neurons write is there: from the scan, or kept since it was first needed."""
        if VALUES in self.manifest["files"]:
            return True
        path = self.folder / VALUES
        key = (VALUES, *identity_of(path))
        if key not in self._checked and is_table_of(path, self.manifest):
            self._checked.add(key)
        return key in self._checked

    def keep_values(self, progress: Progress | None = None) -> None:
        """Make the table of what all neurons write, and keep it in the store's folder. Raises ModelError, FileError."""
        write_values(self.model_for(), self.folder / VALUES, progress)

    def neuron(
        self,
        layer: LayerName | NeuronName,
        neuron: SupportsIndex | None = None,
        *,
        kind: str | Sequence[str] | None = None,
        k: Count | None = None,
        context: Whole = 12,
        shade: bool = False,
        lens: Lens = LOGIT,
        progress: Progress | None = None,
    ) -> Neuron:
        """Everything about one neuron, with a display for notebooks; its examples as :meth:`examples` takes them.

        Where the tokens that it writes need the model and it is not there, the card has all else and says so.

        Args:
            shade: compute its coefficient at every token of the examples that its card shows, see :meth:`shaded`. In a
                notebook a card is shaded without being asked where the store holds its model and that takes a second
                or two (10¹¹ multiplications).
            lens: what the tokens of its value are read through, see :meth:`values`.
            progress: called as ("shade", done, total) in tokens.

        Raises: OutOfRangeError, InputError, FileError; with ``shade`` what :meth:`shaded` raises.
        """
        index = self.index(layer, neuron)
        found = self.example_rows(*index, kind=kind, k=k)
        windows = self.windows(found, context)
        try:
            values, lack = self.values(*index, lens=lens), ""
        except ModelError as error:
            values, lack = pd.DataFrame(columns=list(PROJECTED)), str(error)
        one = Neuron(
            store=self,
            layer=index[0],
            neuron=index[1],
            stats=plain_rows(self.opened(STATS).table(*index))[0],
            examples=self.with_contexts(found, windows),
            windows=tuple(windows),
            histogram=self.histogram(*index),
            by_token=self.by_token(*index),
            by_position=self.by_position(*index),
            values=values,
            context=context,
            lack=lack,
        )
        return self.shaded([one], progress=progress)[0] if shade else one

    def shaded(
        self, neurons: Sequence[Neuron], listed: int | None = None, *, progress: Progress | None = None
    ) -> list[Neuron]:
        """Neurons of this store with their coefficients at every token of the examples that their cards show (but for
        folded groups, which are near 0): :attr:`Neuron.coefficients` and :attr:`Neuron.passages`, exact in float32.

        A store keeps coefficients where they are strongest. The model reads the sequences of these examples again,
        each once for all neurons: on SmolLM2 some 5,000 tokens a card.

        Args:
            neurons: of :meth:`neuron`. listed: examples a kind that cards show; default 10, of a sign case 5.
            progress: called as ("shade", done, total) in tokens.

        Raises: ModelError: no model, or one whose coefficients at the examples are not the store's, to within 10⁻⁴ of
        the neuron's largest. UnsupportedModelError: it is under an intervention.
        """
        model = self.model_for(SHADES)
        return shaded(neurons, model, self.contexts, self.settings, listed, progress)

    def shaded_at_once(self, neuron: Neuron) -> Neuron:
        """:meth:`shaded` where the model is held and that takes a second or two; else the neuron as it is."""
        model = self._source.held
        if model is None or not is_quick(neuron, model, self.contexts):
            return neuron
        try:
            return self.shaded([neuron])[0] if shadable(model, self.fingerprint) else neuron
        except ModelError:  # it is changed: what the files have can be shown
            return neuron

    def shaded_on_page(self, neurons: Sequence[Neuron], listed: int | None) -> Sequence[Neuron]:
        """:meth:`shaded` for a page, where they are few and the model can be had; else as they are, with a warning
        that says why."""
        if len(neurons) > SHADED or any(one.passages for one in neurons):
            return neurons
        try:
            return self.shaded(neurons, listed)
        except ModelError as error:  # none, or under an intervention, or no longer with the weights of the scan
            warn(f"tokens are not shaded: {error}")
            return neurons

    def places(self, neurons: NeuronName | Iterable[NeuronName]) -> list[tuple[int, int]]:
        """Neurons as indices, each once: one name, or several. Raises InputError, OutOfRangeError."""
        names: Any = [neurons] if isinstance(neurons, str) or is_pair(neurons) else neurons
        found = list(dict.fromkeys(self.index(name) for name in names))
        if not found:
            raise InputError("name a neuron at least, such as '3.17'")
        return found

    def verify(self) -> None:
        """Read every file whole and check it; raises FileError naming what is damaged."""
        for name, record in self.manifest["files"].items():
            check_file(self.folder / name, record, content=True)
        self.corpus.verify()
        kept = {path for suffix in ("parquet", "safetensors") for path in self.folder.glob(f"*.{suffix}")}
        for path in sorted(kept - {self.folder / name for name in self.manifest["files"]}):  # measured since the scan
            if path.suffix == ".parquet":
                self.opened(path.name).table()
            else:
                check_tensors(path)
        self._checked.add((ALL,))


@checked
def open_store(folder: str | Path, model: Model | None = None, *, check: bool = False) -> Store:
    """What a scan holds: settings, neurons that never fired, firing rates by layer.

    A neuron fires at a token where its pre-activation is above 0. Firing rates are given as quantiles over a layer's
    neurons: half of them fire at fewer tokens than the median. A gated neuron's pre-activation is its gate's: one that
    never fired may still write a little, with either sign; how often each of the four cases of signs of gate and linear
    part occurs is told as a mean over all neurons.

    Note:
        The manifest is checked now: by itself, by the sizes of all files and by what the state and the corpus tell of
        themselves. Tables, histograms and text are checked when they are first read, each by its checksum.

    Args:
        folder: the folder of a scan.
        model: the one that was scanned, for questions that the files do not answer; a store of another is refused.
        check: read every file whole and check it first; what is damaged is named.

    Raises:
        FileError: no store, an unfinished or damaged one, or one of another version. InputError: another model's.

    Example:
        $ ffnmem store runs/atlas
        $ ffnmem store runs/atlas --check --plot layers.png
        $ ffnmem store runs/atlas --csv
    """
    path = user_folder(folder)
    manifest = read_manifest(path)
    for name, record in manifest["files"].items():
        check_file(path / name, record, content=False)
    store = Store(path, manifest)
    if model is not None:
        store.hold(model)
    _ = store.state, store.corpus  # their descriptions, and the sizes of the corpus's files
    if check:
        store.verify()
    return store


def identity_of(path: Path) -> tuple[int, int]:
    """What tells a file from another that takes its place."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return 0, 0
    return found.st_ino, found.st_mtime_ns
