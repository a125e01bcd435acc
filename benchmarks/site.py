"""What a neuron's page costs: of a site of all, and alone.

STORE is a scan's. The pages of its first ``--layers`` layers are written, and between them, one by one, those of some
random neurons: processor milliseconds, and bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from common import cpu_seconds

import ffnmem as fm
from ffnmem.core.files import write_whole
from ffnmem.pages.neuron_site import write_layer
from ffnmem.pages.rendering import sheet_html

ALONE = 16  # neurons of a layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--layers", type=int)
    asked = parser.parse_args()
    store = fm.open_store(asked.store)
    if not store.projected:
        store.keep_values()
    random, site, alone, size = np.random.default_rng(0), [], [], []
    with TemporaryDirectory() as folder:
        for layer in range(asked.layers or store.n_layers):
            room, count = Path(folder) / str(layer), store.d_mlp(layer)
            room.mkdir()
            site.append(cpu_seconds(lambda: write_layer(store, layer, room, 12, (0, 1), None)) / count)  # noqa: B023
            for neuron in random.integers(count, size=ALONE).tolist():
                page = Path(folder) / "one.html"
                alone.append(cpu_seconds(lambda: write_whole(page, sheet_html(store.neuron(layer, neuron).sheet()))))  # noqa: B023
                size.append((room / f"{neuron}.html").stat().st_size)
    print(f"{store.model}, {store.n_tokens:,} tokens, medians of {len(site)} layers and {len(alone)} neurons")
    print(f"a page of a site     {1000 * np.median(site):.1f} ms, {np.median(size) / 1000:.1f} kB")
    print(f"a page of its own    {1000 * np.median(alone):.0f} ms, {np.median(alone) / np.median(site):.0f} times")


if __name__ == "__main__":
    main()
