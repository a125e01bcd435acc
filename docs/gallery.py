"""The gallery: ``python docs/gallery.py [NAME …]`` draws every kind of picture, or some, into out/gallery, beside a
page of them with the code and the command that draw each one (minutes for all)."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "out" / "gallery"
DPI = 90

TOWER = '"The Eiffel Tower is located in the city of"'
KREMLIN = '"The Kremlin is located in the city of"'
SUBJECT = '"Eiffel Tower"'
PARIS = '--target " Paris"'
RIVAL = f'{PARIS} --foil " Rome"'


@dataclass(frozen=True)
class Picture:
    """One picture: how it is called, what it shows, the Python that draws it, and the command that does, if any."""

    name: str
    title: str
    shows: str
    code: str
    command: str = ""

    @property
    def markdown(self) -> str:
        blocks = [f"### {self.title}", f"![{self.shows}]({self.name}.png)", self.shows]
        blocks.append(f"```python\n{self.code.strip()}\n```")
        if self.command:
            blocks.append(f"```bash\n{self.command}\n```")
        return "\n\n".join(blocks)


@dataclass(frozen=True)
class Section:
    """Pictures that begin with the same lines."""

    title: str
    begin: str
    pictures: tuple[Picture, ...]

    @property
    def markdown(self) -> str:
        begin = [f"```python\n{self.begin.strip()}\n```"] if self.begin else []
        return "\n\n".join([f"## {self.title}", *begin, *(one.markdown for one in self.pictures)])


TOP = """# Gallery

Every kind of figure that ffnmem draws, with the lines that draw it and the command where there is one. All of it is of
`atlas`, the model that comes with the package, unless a line says otherwise. A drawing function draws one picture and
gives back its matplotlib Axes (`ax=` draws into yours). `fm.plots.figure(result)` draws all pictures of a result, as
`--plot FILE` does (.png, .svg or .pdf); `fm.plots.arrange` puts any pictures on one figure.

Blue is towards and above zero, orange against and below: a pair that colour-blind readers tell apart, as most of the
other colours (Okabe and Ito 2008)."""

SECTIONS = (
    Section(
        "Who wrote an answer",
        """
import ffnmem as fm

model = fm.load("atlas")
capture = fm.capture(model, "The Eiffel Tower is located in the city of")
answer = fm.attribute(capture, " Paris")
""",
        (
            Picture(
                "layers",
                "Layer by layer",
                "What attention (grey) and FFN (blue) of each layer add to the logit of an answer; the line is their "
                "sum.",
                "fm.plots.layers(answer)",
                f"ffnmem attribute {TOWER} {PARIS} --plot answer.png",
            ),
            Picture(
                "components",
                "As a waterfall",
                "All parts of the logit one after another, from the embedding to the sum.",
                "fm.plots.components(answer)",
            ),
            Picture(
                "neurons",
                "Neuron by neuron",
                "The memories that wrote most for (blue) and against (orange) an answer.",
                "fm.plots.neurons(answer, top=12)",
            ),
            Picture(
                "map",
                "At every position",
                "What the memories of each layer, firing at each token, wrote for one answer and against another, "
                "along all "
                "paths through attention.",
                'fm.plots.map(fm.attribute_paths(capture, " Paris", foil=" Rome"))',
                f"ffnmem paths {TOWER} {RIVAL} --plot map.png",
            ),
            Picture(
                "ablation",
                "Credit against effect",
                "What each memory wrote, against what the answer loses without it; off the line, later layers react.",
                'fm.plots.ablation(fm.ablate(capture, " Paris", most=24))',
                f"ffnmem ablate {TOWER} {PARIS} --top 24 --plot ablation.png",
            ),
        ),
    ),
    Section(
        "Circuits",
        """
smallest = fm.minimal_circuit(capture, " Paris", foil=" Rome")
circuit = fm.circuit(capture, smallest, " Paris", foil=" Rome")
scores = fm.causal_scores(capture, " Paris", foil=" Rome")
found = fm.contrast(model, "The Eiffel Tower is located in the city of", "The Kremlin is located in the city of")
""",
        (
            Picture(
                "contrast",
                "Where two prompts part",
                "The firings that decide between the answers to two prompts, by layer and position.",
                "fm.plots.contrast(found)",
                f"ffnmem contrast {TOWER} {KREMLIN} --plot contrast.png",
            ),
            Picture(
                "contrast_curve",
                "How many decide",
                "What the set keeps alone, and what is lost without it, as it grows; dots: after pruning.",
                "fm.plots.contrast_curve(found)",
            ),
            Picture(
                "circuit",
                "Which memory made which fire",
                "Few firings that are enough for an answer, by position and layer; lines say what a source adds (blue) "
                "to what its target reads, or takes (orange).",
                "fm.plots.circuit(circuit, top=12)",
                f"ffnmem circuit {TOWER} {RIVAL} --plot circuit.png",
            ),
            Picture(
                "faithfulness",
                "How few are enough",
                "The share of an answer that is left when so many firings are kept, all others set to zero; all but "
                "these; and as "
                "many at random.",
                'fm.plots.faithfulness(fm.faithfulness(capture, " Paris", foil=" Rome", firings=scores))',
                f"ffnmem faithfulness {TOWER} {RIVAL} --plot faithfulness.png",
            ),
        ),
    ),
    Section(
        "What fires a neuron",
        """
documents = [document.text for document in fm.corpus.open_corpus("atlas")]
store = fm.scan(model, documents[:1200], "runs/gallery")
""",
        (
            Picture(
                "histogram",
                "One neuron's coefficients",
                "How often a neuron has which coefficient; heights are tokens per unit, so that wide and narrow bins "
                "compare.",
                "fm.plots.histogram(store.neuron(1, 161))",
                "ffnmem neuron 1.161 --store runs/gallery --plot histogram.png",
            ),
            Picture(
                "firing_rates",
                "How often neurons fire",
                "The share of tokens at which the neurons of each layer fire: median, middle half, and 5% to 95%.",
                "fm.plots.firing_rates(store)",
                "ffnmem store runs/gallery --plot firing.png",
            ),
        ),
    ),
    Section(
        "One concept or many",
        """
verdicts = fm.polysemanticity(store, model, layers=[1, 3], draws=50)
""",
        (
            Picture(
                "verdicts",
                "Verdicts by layer",
                "The share of each layer's neurons with one meaning (blue), several (orange), and unclear ones (grey).",
                "fm.plots.verdicts(verdicts)",
                "ffnmem polysemanticity --store runs/gallery --plot verdicts.png",
            ),
            Picture(
                "meanings",
                "The meanings of one neuron",
                "How alike a neuron's examples are, as the FFN read them, sorted into meanings; blue blocks are alike.",
                "fm.plots.meanings(fm.meanings(store, 1, 219, model))",
                "ffnmem meanings 1.219 --store runs/gallery --plot meanings.png",
            ),
        ),
    ),
    Section(
        "What part it plays, and how weights share their space",
        """
roles = fm.roles(model, store, n_sequences=256)
geometry = fm.neurons.geometry(model)
""",
        (
            Picture(
                "roles",
                "Roles by layer",
                "The share of each layer's neurons that play a part by the papers' rules.",
                "fm.plots.roles(roles)",
                "ffnmem roles --store runs/gallery --plot roles.png",
            ),
            Picture(
                "interference",
                "How much they overlap",
                "Cosines between the keys (blue) and the values (green) of each layer, beside random rows as "
                "anisotropic (grey).",
                "fm.plots.geometry(geometry)",
                "ffnmem geometry --plot geometry.png",
            ),
            Picture(
                "capacity",
                "How much room they have",
                "The share of a dimension that each key and each value has for itself.",
                'fm.plots.geometry(geometry, "capacity")',
            ),
            Picture(
                "rank",
                "How many dimensions they use",
                "Three effective ranks of keys and values by layer, beside those of random rows.",
                'fm.plots.geometry(geometry, "rank")',
            ),
            Picture(
                "io",
                "What is read and what is written",
                "The cosine of each neuron's key and value, by layer: above zero it adds to what it reads.",
                'fm.plots.geometry(geometry, "io")',
            ),
            Picture(
                "virtual_weights",
                "Wired by weights alone",
                "Which memories make one fire (blue) or keep it from it (orange), against random directions.",
                "fm.plots.virtual_weights(fm.virtual_weights(model, 3, 17, k=10))",
                "ffnmem weights 3.17 --top 10 --plot weights.png",
            ),
        ),
    ),
    Section(
        "Activations, health and size",
        "",
        (
            Picture(
                "activations",
                "Activations and their gradients",
                "What each activation makes of a pre-activation, and its slope.",
                """
from functools import partial

draw = partial(fm.plots.activations, ["relu", "gelu", "silu"])
fm.plots.arrange([draw, partial(draw, gradient=True)])
""",
                "ffnmem activations --names relu --names gelu --names silu --plot activations.png",
            ),
            Picture(
                "health",
                "Dead, stuck and saturated",
                "The share of each layer's neurons that never fire, that no gradient reaches, and that are always on.",
                "fm.plots.health(health)",
                "ffnmem health atlas --plot health.png",
            ),
            Picture(
                "anatomy",
                "Where the parameters are",
                "Each component's share of all parameters.",
                'fm.plots.anatomy(fm.models.anatomy("atlas"))',
                "ffnmem anatomy atlas --plot anatomy.png",
            ),
        ),
    ),
    Section(
        "Where a fact is",
        """
facts = fm.load_facts("atlas")
fact = next(fact for fact in facts if fact.subject == "Eiffel Tower")
whole = [fact for fact in facts[::29] if fact.target_new and fact.neighbours][:8]
traces = fm.tracing.trace_facts(model, whole, samples=3)
""",
        (
            Picture(
                "trace",
                "A causal trace",
                "With noise on the subject (*), what a restored state, FFN or attention output brings back of the "
                "answer.",
                "fm.plots.figure(fm.trace_fact(model, fact))",
                f"ffnmem trace {TOWER} {SUBJECT} --plot trace.png",
            ),
            Picture(
                "traces",
                "Traces of many facts",
                "The same on average over facts, by group of tokens, with 95% intervals.",
                "fm.plots.figure(traces)",
                "ffnmem trace-facts atlas --limit 8 --plot traces.png",
            ),
            Picture(
                "silencing",
                "What it cannot do without",
                "What the answer loses when FFNs, or attention, write nothing at a token, in a window of layers.",
                "fm.plots.fact_map(fm.trace_fact(model, fact, way='silence'))",
                f"ffnmem trace {TOWER} {SUBJECT} --way silence --plot silence.png",
            ),
            Picture(
                "silencings",
                "The same of many facts",
                "What answers lose on average, by group of tokens, with 95% intervals.",
                "fm.plots.fact_curves(fm.tracing.trace_facts(model, whole, way='silence'))",
                "ffnmem trace-facts atlas --way silence --limit 8 --plot silence.png",
            ),
            Picture(
                "knockout",
                "Where it is fetched",
                "What the answer loses when its position may not attend to a token, in a window of layers.",
                "fm.plots.fact_map(fm.knockout(model, fact))",
                f"ffnmem knockout {TOWER} {SUBJECT} --plot knockout.png",
            ),
            Picture(
                "knockouts",
                "Fetched, of many facts",
                "The same on average over facts, with 95% intervals.",
                "fm.plots.fact_curves(fm.tracing.knockout_facts(model, whole))",
                "ffnmem knockout-facts atlas --limit 8 --plot knockout.png",
            ),
        ),
    ),
    Section(
        "Edits",
        """
contexts = fm.editing.sample_contexts(model, n=2)
""",
        (
            Picture(
                "scores",
                "Editors side by side",
                "How often edits take (ES), in paraphrases too (PS), and leave neighbours alone (NS, NS+), with 95% "
                "intervals.",
                'fm.plots.scores(fm.evaluate(model, whole, compare=("memit", "ft_l"), contexts=contexts))',
                "ffnmem evaluate atlas --compare memit --compare ft_l --limit 8 --plot scores.png",
            ),
            Picture(
                "sweep",
                "Layer by layer, above the trace",
                "Scores by edited layer; below, where a causal trace finds the same facts.",
                "fm.plots.sweep(fm.evaluation.layer_sweep(model, whole, layers=range(4), contexts=contexts), traces)",
            ),
            Picture(
                "decay",
                "One edit after another",
                "Scores of all edits so far; below, the loss on ordinary text and the weights' norm.",
                """
many = [fact for fact in facts[::29] if fact.target_new][:60]
fm.plots.decay(fm.evaluation.sequential(model, many, at=(1, 3, 10, 30, 60), contexts=contexts))
""",
                "ffnmem sequential atlas --at 1,3,10,30,60 --limit 60 --plot decay.png --order drawn",
            ),
            Picture(
                "comparison",
                "What an edit moved",
                "How far the neurons that an edit changed have moved, by layer: most, the middle half, the median "
                "and the largest.",
                'fm.plots.comparison(fm.compare(model, fm.rome(model, fact, " Rome")), "changes")',
                "ffnmem compare eiffel.zip --plot moved.png",
            ),
        ),
    ),
)


def pictures() -> list[Picture]:
    return [one for section in SECTIONS for one in section.pictures]


def draw(names: Iterable[str]) -> None:
    """Draw some pictures; of a section without any of them nothing is run but what it begins with."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    wanted, space = set(names), {"__name__": "gallery"}
    last = max(i for i, section in enumerate(SECTIONS) if wanted & {one.name for one in section.pictures})
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("runs").mkdir()
        for section in SECTIONS[: last + 1]:
            exec(compile(section.begin, section.title, "exec"), space)
            for one in section.pictures:
                if one.name in wanted:
                    *before, expression = one.code.strip().splitlines()
                    exec(compile("\n".join(before), one.name, "exec"), space)
                    figure = eval(expression, space).figure
                    figure.savefig(FOLDER / f"{one.name}.png", dpi=DPI, bbox_inches="tight", facecolor="white")
                    plt.close("all")
                    print(one.name, flush=True)


def main() -> None:
    known = [one.name for one in pictures()]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"pictures to draw; default: all of {', '.join(known)}"
    )
    names = parser.parse_args().names
    if unknown := sorted({*names} - {*known}):
        parser.error(f"no picture {unknown[0]}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "index.md").write_text("\n\n".join([TOP, *(section.markdown for section in SECTIONS)]) + "\n", "utf-8")
    draw(names or known)
    print(FOLDER / "index.md")


if __name__ == "__main__":
    main()
