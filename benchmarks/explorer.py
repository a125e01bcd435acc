"""How long the explorer keeps its user waiting: from the command to the first answer, and for each click after it.

A process of its own serves; views are asked for as a browser asks, a page that waits asked again until the view is
there. Each address is new to the server (``again``: one that it has kept), so that these are the times of first clicks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from urllib.parse import quote
from urllib.request import urlopen

PROMPT = "The Eiffel Tower is located in the city of"
OTHER = "The capital of France is"
LIMIT = 300  # seconds


def came(base: str, path: str) -> float:
    """Seconds until the view is there."""
    began = time.perf_counter()
    while time.perf_counter() - began < LIMIT:
        with urlopen(base + path, timeout=LIMIT) as answer:
            answer.read()
            if answer.status == 200:
                return time.perf_counter() - began
        time.sleep(0.3)
    raise SystemExit(f"{path} took more than {LIMIT} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="atlas")
    parser.add_argument("--store", help="a store of the model")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "ffnmem", "explore", "--model", arguments.model, "--port", "0", "--no-browser"]
    began = time.perf_counter()
    store = ["--store", arguments.store] if arguments.store else []
    with subprocess.Popen([*command, *store], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            base = server.stdout.readline().strip().rstrip("/")
            times = {"from the command until it answers": time.perf_counter() - began}
            text, other = quote(PROMPT), quote(OTHER)
            for name, path in {
                "start": "/",
                "prompt: first view": f"/prompt?text={text}",
                "prompt: another token": f"/prompt?text={text}&at=4",
                "prompt: causal scores": f"/prompt?text={text}&by=causal",
                "prompt: a cell of the map": f"/prompt?text={text}&cell=2.3",
                "prompt: two memories off": f"/prompt?text={text}&v=2.5:0,3.7:0",
                "prompt: another text": f"/prompt?text={other}",
                "memory": "/memory/3.17",
                "memory: the next one": "/memory/3.18",
                "memory: its connections": "/memory/3.17?part=wires",
                "find: a word": "/find?words=Paris",
                "find: another word": "/find?words=London",
                "find: a text": f"/find?text={text}",
                "find: with roles": "/find?words=Paris&role=any",
                "again": f"/prompt?text={text}",
            }.items():
                times[name] = came(base, path)
        finally:
            server.terminate()
    if arguments.json:
        print(json.dumps({"model": arguments.model, "seconds": {k: round(v, 3) for k, v in times.items()}}))
        return
    for name, seconds in times.items():
        print(f"{name:36} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
