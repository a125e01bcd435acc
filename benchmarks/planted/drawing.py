"""The figure of a calibration: a panel a table."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
VERDICTS = {"monosemantic": "#0072b2", "unclear": "#b8bec6", "polysemantic": "#e07b00", "inactive": "#1a1a1a"}
NOMINAL = 0.05


def draw(tables: dict[str, pd.DataFrame]) -> Figure:
    """How well measures tell meanings by superposition, verdicts, null rates, roles and facts, where there are such."""
    panels = []
    if "curves" in tables:
        panels += [
            lambda ax: curves(ax, tables["curves"], "auroc", "AUROC", 0.5),
            lambda ax: curves(ax, tables["curves"], "spearman", "rank correlation", 0.0),
            lambda ax: verdicts(ax, tables["verdicts"]),
            lambda ax: nulls(ax, tables["nulls"]),
        ]
    if "roles" in tables:
        panels.append(lambda ax: roles(ax, tables["roles"]))
    if "facts" in tables:
        panels.append(lambda ax: facts(ax, tables["facts"]))
    figure, axes = plt.subplots((len(panels) + 1) // 2, 2, figsize=(14, 4 * ((len(panels) + 1) // 2)), squeeze=False)
    for ax, panel in zip(axes.flat, panels, strict=False):
        panel(ax)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    figure.tight_layout()
    return figure


def finish(ax: Axes, title: str, across: str, up: str = "", legend: bool = True) -> None:
    ax.set_title(title, loc="left")
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    if legend:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def curves(ax: Axes, table: pd.DataFrame, score: str, label: str, chance: float) -> None:
    for colour, (name, rows) in zip(COLOURS, table.groupby("measure", sort=False), strict=False):
        ax.plot(rows["superposition"], rows[score], color=colour, marker="o", label=name)
        ax.fill_between(rows["superposition"], rows[f"{score}_low"], rows[f"{score}_high"], color=colour, alpha=0.15)
    ax.axhline(chance, color="black", linestyle=":", linewidth=1)
    title = (
        "Rank correlation with the number" if score == "spearman" else "Telling polysemantic from monosemantic neurons"
    )
    finish(ax, title, "superposition: features per dimension", label)


def verdicts(ax: Axes, table: pd.DataFrame) -> None:
    total, below = table[list(VERDICTS)].sum(axis=1).clip(lower=1), np.zeros(len(table))
    names = ["dead" if count == 0 else str(count) for count in table["true_meanings"]]
    for name, colour in VERDICTS.items():
        ax.bar(names, table[name] / total, bottom=below, color=colour, label=name)
        below += (table[name] / total).to_numpy()
    finish(ax, "Verdicts", "planted meanings", "share of neurons")


def nulls(ax: Axes, table: pd.DataFrame) -> None:
    dots(ax, list(table["measure"]), {"rejected": table[["rate", "low", "high"]].to_numpy()})
    ax.axvline(NOMINAL, color="black", linestyle=":", linewidth=1)
    ax.set_xlim(0, max(2 * NOMINAL, 1.1 * table["high"].max()))
    finish(ax, "How often each null is rejected", "neurons with p < .05 where nothing is planted", legend=False)


def roles(ax: Axes, table: pd.DataFrame) -> None:
    dots(ax, list(table["role"]), {name: table[[name] * 3].to_numpy() for name in ("precision", "recall")})
    finish(ax, "Roles", "share")


def facts(ax: Axes, table: pd.DataFrame) -> None:
    names = [f"{measure}, {site}" for measure, site in zip(table["measure"], table["site"], strict=True)]
    first, second = table[["first", "low", "high"]].to_numpy(), table[["second"] * 3].to_numpy()
    dots(ax, names, {"first": first, "first or second": second})
    finish(ax, "Facts", "facts whose neuron is ranked first")


def dots(ax: Axes, names: list[str], series: dict[str, np.ndarray]) -> None:
    """A row a name, a dot a series, with its interval: value, low and high."""
    for i, (label, rows) in enumerate(series.items()):
        y = np.arange(len(names)) + 0.3 * (i - (len(series) - 1) / 2)
        value, low, high = rows.T
        ax.errorbar(value, y, xerr=[value - low, high - value], fmt="o", capsize=3, color=COLOURS[i], label=label)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    if len(series) > 1:
        ax.set_xlim(-0.03, 1.03)
