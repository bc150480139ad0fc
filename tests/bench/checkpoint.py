"""What a checkpoint costs: how long an asynchronous save holds the program up, beside copying its
state; how long it takes until it is committed, beside writing as many bytes and fsync; how fast it
is verified from the page cache. Medians; the files are under CHECKPOINT_BENCH_DIR (/var/tmp)."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from common import Report
from harness import BUILD

PROGRAM = os.path.join(BUILD, "tests", "bench", "bench_checkpoint")
SIZES = ((64, 15), (512, 7))  # MiB, rounds


def measure(folder, mib, rounds):
    """Medians by name; the first round makes memory and files and is not counted."""
    done = subprocess.run([PROGRAM, folder, str(mib), str(rounds + 1)], stdout=subprocess.PIPE, text=True,
                          timeout=600, check=True)
    lines = [line.split() for line in done.stdout.splitlines()][1:]
    return {name: statistics.median(float(line[i + 1]) for line in lines) for i, name in enumerate(lines[0])
            if i % 2 == 0}


def main():
    report = Report("checkpoint", sys.argv[1:])
    folder = tempfile.mkdtemp(prefix="hvd-bench-", dir=os.environ.get("CHECKPOINT_BENCH_DIR", "/var/tmp"))
    try:
        for mib, rounds in SIZES:
            took = measure(folder, mib, rounds)
            report.title(f"a state of {mib} MiB")
            report.less_is_better(f"stall of {mib} MiB", took["stall"] * 1000, {"memcpy": took["memcpy"] * 1000})
            report.more_is_better(f"persist {mib} MiB", mib / took["persist"], {"write, fsync": mib / took["raw"]}, "MiB/s")
            report.more_is_better(f"verify {mib} MiB", mib / 1024 / took["verify"],
                                  {"read": mib / 1024 / took["read"]}, "GiB/s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
