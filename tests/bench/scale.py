"""What a launch over many hosts costs: 64 and 200 addresses of one lab host, all behind one sshd, 1
rank of /bin/true each. Beside it, in the same rounds, the same number of plain libssh connections
opened in parallel that run the command without any agent: what that sshd takes at least. The
launcher's own CPU time is told per host."""

import json
import os
import statistics
import sys

from common import Report
from harness import BUILD, HVDLAUNCH, PYTHON, Lab, lab_refusal

COUNTS = (64, 200)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
FLOOR = os.path.join(BUILD, "tests", "bench", "ssh_floor")

# Runs a command and prints what it took: inside the lab, so that the way into it is not measured.
MEASURE = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
wall = time.perf_counter() - started
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"code": done.returncode, "wall": wall * 1000, "cpu": (used.ru_utime + used.ru_stime) * 1000,
                  "memory": used.ru_maxrss / 1024}))
"""


def measured(lab, *argv):
    told = json.loads(lab.output("head", PYTHON, "-c", MEASURE, *argv))
    if told["code"] != 0:
        raise SystemExit(f"bench scale: {' '.join(argv)[:200]} ended with {told['code']}")
    return told


def main():
    report = Report("scale", sys.argv[1:])
    refusal = lab_refusal()
    if refusal:
        raise SystemExit(f"bench scale: not run: {refusal}")
    lab = Lab(1)
    try:
        for count in COUNTS:
            addresses = lab.add_addresses("h1", count)
            runs = {
                "hvdlaunch": (HVDLAUNCH, "-H", ",".join(f"{a}:1" for a in addresses), "/bin/true"),
                "plain libssh": (FLOOR, "/bin/true", *addresses),
            }
            results = {name: [] for name in runs}
            for number in range(ROUNDS + 1):
                for name, argv in runs.items():
                    told = measured(lab, *argv)
                    if number > 0:
                        results[name].append(told)
            middle = {name: {what: statistics.median(t[what] for t in told) for what in told[0]}
                      for name, told in results.items()}
            ours, floor = middle["hvdlaunch"], middle["plain libssh"]
            report.title(f"1 rank of /bin/true on each of {count} hosts behind one sshd, median of {ROUNDS} rounds")
            report.less_is_better(f"{count}-hosts", ours["wall"], {"plain libssh": floor["wall"]})
            report.title(f"CPU time of the launcher per host, {count} hosts")
            report.less_is_better(f"{count}-hosts-cpu", ours["cpu"] / count, {"plain libssh": floor["cpu"] / count})
            report.title(f"largest memory of the launcher, {count} hosts")
            report.less_is_better(f"{count}-hosts-memory", ours["memory"], {"plain libssh": floor["memory"]}, "MiB")
    finally:
        lab.down()


main()
