"""What 1,000 ranks that sleep on this machine cost beside themselves: memory of the launcher, the
agent and its keeper, their share of a core while nothing happens, and the time to start and to end
them all."""

import os
import re
import signal
import subprocess
import sys
import time

from common import Report
from harness import HVDLAUNCH, descendants, is_agent, wait_for

RANKS = int(os.environ.get("BENCH_RANKS", "1000"))
SETTLE_SECONDS = 10  # an agent looks at its new ranks for a while
IDLE_SECONDS = 10


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s*(\d+)", f.read())[1]) / 1024


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    report = Report("ranks", sys.argv[1:])
    started = time.perf_counter()
    job = subprocess.Popen([HVDLAUNCH, "-np", str(RANKS), "sleep", "1000"], stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: sum(p.name == "sleep" for p in descendants(job.pid)) == RANKS, 120, "all ranks")
        start = time.perf_counter() - started
        keeper = next(p.pid for p in descendants(job.pid) if is_agent(p) and p.ppid == job.pid)
        agent = next(p.pid for p in descendants(job.pid) if is_agent(p) and p.ppid == keeper)
        parts = {"launcher": job.pid, "agent": agent, "keeper": keeper}
        time.sleep(SETTLE_SECONDS)
        before = {name: cpu_seconds(pid) for name, pid in parts.items()}
        time.sleep(IDLE_SECONDS)
        report.title(f"{RANKS} ranks of sleep on this machine")
        for name, pid in parts.items():
            report.value(f"{name}-memory", resident_mib(pid), "MiB")
            report.value(f"{name}-idle", 100 * (cpu_seconds(pid) - before[name]) / IDLE_SECONDS, "% of a core")
        report.value("start", start, "s")
        started = time.perf_counter()
        job.send_signal(signal.SIGTERM)
        job.wait(120)
        report.value("end", time.perf_counter() - started, "s")
    finally:
        job.kill()
        job.wait()


main()
