"""How long the explorer keeps its user waiting: from the command to the first answer, and for each click after it.

A process of its own serves; views are asked for as a browser asks, a page that waits asked again until the view is
there. Each address is new to the server (``again``: one that it has kept), so that these are the times of first clicks.
The server's processor time stands beside the wall's: it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

PROMPT = "The Eiffel Tower is located in the city of"
OTHER = "The capital of France is"
LIMIT = 300  # seconds


def processor(pid: int) -> float:
    """Seconds of the processor that a process took so far; nan where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.nan
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    parser.add_argument("--roles", action="store_true", help="also search with roles: of a real model minutes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "ffnmem", "explore", "--model", arguments.model, "--port", "0", "--no-browser"]
    began = time.perf_counter()
    store = ["--store", arguments.store] if arguments.store else []
    with subprocess.Popen([*command, *store], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            base = server.stdout.readline().strip().rstrip("/")
            times = {"from the command until it answers": (time.perf_counter() - began, processor(server.pid))}
            text, other = quote(PROMPT), quote(OTHER)
            for name, path in {
                "start": "/",
                "a text: first view": f"/report?prompt={text}",
                "another token of it": f"/report?prompt={text}&position=4",
                "causal scores": f"/report?prompt={text}&by=causal",
                "a cell of the map": f"/report?prompt={text}&layer=2&at=3",
                "two neurons off": f"/intervene?prompt={text}&changes=2.5%3D0,3.7%3D0&generate=8",
                "another text": f"/report?prompt={other}",
                "a neuron": "/project?neurons=3.17",
                "the next one": "/project?neurons=3.18",
                "its connections": "/weights?neuron=3.17",
                "a word": "/token?tokens=%20Paris",
                **({"roles": "/roles?go=1"} if arguments.roles else {}),
                "again": f"/report?prompt={text}",
            }.items():
                before = processor(server.pid)
                times[name] = came(base, path), processor(server.pid) - before
        finally:
            server.terminate()
    if arguments.json:
        rounded = {name: {"wall": round(wall, 3), "processor": round(own, 3)} for name, (wall, own) in times.items()}
        print(json.dumps({"model": arguments.model, "seconds": rounded}))
        return
    print(f"{'':36}   wall  processor")
    for name, (wall, own) in times.items():
        print(f"{name:36} {wall:6.2f} s   {own:6.2f} s")


if __name__ == "__main__":
    main()
