"""This suite meets the package as users do: without the shape checks that the other tests hang on every function.

That is why ``tests/conftest.py`` leaves it out, and ``make test`` runs it by itself, with ``--confcutdir``.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
