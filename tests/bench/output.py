"""How fast the output of 4 ranks comes through with a prefix before each line: 80-byte lines, 256
MiB in all, beside mpirun (Open MPI) and mpiexec.hydra (MPICH), and a plain pipe without prefixes.
The reader checks that no line is lost, torn or out of order; in a second case it only counts, which
tells what the checking costs."""

import os
import shutil
import subprocess
import sys

from common import Report, interleaved
from harness import BUILD, HVDLAUNCH

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
RANKS = 4
ALL = int(os.environ.get("BENCH_MIB", "256")) << 20
EACH = ALL // RANKS // 80 * 80
LINES = os.path.join(BUILD, "tests", "bench", "bench_lines")
WRITE = [LINES, "write", str(EACH)]


def through(reader, *writers):
    """A call for interleaved(): the writers' output through a pipe into the reader."""
    def run():
        read, write = os.pipe()
        with subprocess.Popen(reader, stdin=read, stdout=subprocess.DEVNULL) as reading:
            os.close(read)
            writing = [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=write,
                                        stderr=subprocess.DEVNULL, env=env)
                       for argv, env in writers]
            os.close(write)
            codes = [w.wait(120) for w in writing] + [reading.wait(120)]
        return subprocess.CompletedProcess(writers[0][0], max(codes, key=abs), stderr="")

    return run


def open_mpi():
    path = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    return [path, "--allow-run-as-root", "--oversubscribe"]


def runs(reader, names):
    count = str(RANKS)
    own = dict(os.environ)
    plain = [(WRITE, dict(own, HVD_RANK=str(rank))) for rank in range(RANKS)]
    every = {
        "hvdlaunch": through(reader, ([HVDLAUNCH, "-np", count, *WRITE], own)),
        "mpiexec.hydra": through(reader, (["mpiexec.hydra", "-prepend-rank", "-n", count, *WRITE], own)),
        "mpirun": through(reader, ([*open_mpi(), "--tag-output", "-n", count, *WRITE], own)),
        "plain pipe": through(reader, *plain),
    }
    return {name: every[name] for name in names}


def main():
    report = Report("output", sys.argv[1:])
    checked = [LINES, "check", str(RANKS), str(EACH)]
    # mpirun tears lines and a plain pipe mixes them, so these can only be counted.
    for case, reader, names in (
            ("checked", checked, ("hvdlaunch", "mpiexec.hydra")),
            ("counted", [LINES, "count"], ("hvdlaunch", "mpiexec.hydra", "mpirun", "plain pipe"))):
        times = interleaved(ROUNDS, runs(reader, names))
        speeds = {name: EACH * RANKS / 1000 / ms for name, ms in times.items()}
        report.title(f"{ALL >> 20} MiB of 80-byte lines from {RANKS} ranks, prefixed, {case} by the reader, "
                     f"median of {ROUNDS} rounds")
        report.more_is_better(case, speeds.pop("hvdlaunch"), speeds, "MB/s")


main()
