"""What the benches share: interleaved timing and the two ways to print a result.

With --json each result is one object a line: bench, case, unit, value, peer, peer_value, ratio
(above 1: ours is better).
"""

import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))


def timed(run):
    """Milliseconds of one call of run(), which returns a finished process; it must have ended well."""
    started = time.perf_counter()
    done = run()
    took = (time.perf_counter() - started) * 1000
    if done.returncode != 0:
        raise SystemExit(f"bench: {done.args} ended with {done.returncode}: {done.stderr}")
    return took


def interleaved(rounds, runs):
    """Median milliseconds of each named run, all of them once a round so that they share the
    machine's moods. The first round warms caches and is not counted."""
    times = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            took = timed(run)
            if number > 0:
                times[name].append(took)
    return {name: statistics.median(t) for name, t in times.items()}


def quiet(*argv, **options):
    """A call for timed(): runs argv without output."""
    return lambda: subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, timeout=120, **options)


class Report:
    """Collects results; prints a table, or JSON lines with --json."""

    def __init__(self, bench, arguments):
        self.bench = bench
        self.json = "--json" in arguments
        unknown = [a for a in arguments if a != "--json"]
        if unknown:
            raise SystemExit(f"bench {bench}: unknown argument {unknown[0]}")

    def title(self, text):
        if not self.json:
            print(f"\n{text}")

    def less_is_better(self, case, value, peers, unit="ms"):
        """Our value beside each peer's, and beside nothing if there is none."""
        self._compare(case, value, peers, unit, lambda peer_value: peer_value / value)

    def more_is_better(self, case, value, peers, unit):
        self._compare(case, value, peers, unit, lambda peer_value: value / peer_value)

    def value(self, case, value, unit):
        """A value that stands by itself."""
        if self.json:
            print(json.dumps({"bench": self.bench, "case": case, "unit": unit, "value": round(value, 2)}), flush=True)
        else:
            print(f"  {case:<16}{value:>9.2f} {unit}", flush=True)

    def _compare(self, case, value, peers, unit, ratio):
        if self.json:
            for peer, peer_value in peers.items():
                print(json.dumps({
                    "bench": self.bench, "case": case, "unit": unit, "value": round(value, 2), "peer": peer,
                    "peer_value": round(peer_value, 2), "ratio": round(ratio(peer_value), 3)}), flush=True)
            return
        print(f"  {'hvdlaunch':<16}{value:>9.1f} {unit}")
        for peer, peer_value in peers.items():
            print(f"  {peer:<16}{peer_value:>9.1f} {unit}   {peer_value / value:.2f} times ours", flush=True)
