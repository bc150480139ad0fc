"""What a checkpoint costs: how long an asynchronous save holds the program up, beside copying its
state; how long it takes until it is committed, beside writing as many bytes and fsync; how fast it
is verified from the page cache; how long it takes to keep a state in the agent's memory. Medians; the files are under CHECKPOINT_BENCH_DIR (/var/tmp)."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from common import Report
from harness import BUILD, HVDLAUNCH

PROGRAM = os.path.join(BUILD, "tests", "bench", "bench_checkpoint")
SIZES = ((64, 15), (512, 7))  # MiB, rounds


def measure(folder, mib, rounds, launcher=(), warming=1):
    """Medians by name; the first rounds make memory and files and are not counted."""
    done = subprocess.run([*launcher, PROGRAM, folder, str(mib), str(rounds + warming)], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, timeout=600, check=True)
    lines = [line.split() for line in done.stdout.splitlines()][warming:]
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
            launcher = (HVDLAUNCH, "-np", "1", "--no-prefix", "--checkpoint-dir", f"{folder}/job")
            kept = measure("--keep", mib, rounds, launcher, warming=2)
            report.less_is_better(f"keep {mib} MiB", kept["keep"] * 1000, {"memcpy": kept["memcpy"] * 1000})
            report.more_is_better(f"persist {mib} MiB", mib / took["persist"], {"write, fsync": mib / took["raw"]}, "MiB/s")
            report.more_is_better(f"verify {mib} MiB", mib / 1024 / took["verify"],
                                  {"read": mib / 1024 / took["read"]}, "GiB/s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
