"""supervision.py [--pairs N] [--minutes M] [--loops N] [--json]: what being watched costs, and whether it raises
false alarms.

1. Two ranks on this machine take steps. In turns of two seconds launcher, keeper and agent run, or
are stopped (SIGSTOP; the limits of the job are far longer): the time of a step beside itself.

2. With --minutes: 8 lab hosts train with the limits of every day, while busy loops take twice the
cores of this machine and the launcher is stopped now and then for a part of the lease. Any attempt
but the first is a false alarm."""

import argparse
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from common import Report
from harness import BUILD, HVDLAUNCH, PYTHON, InLab, Lab, Run, Supervised, kill, lab_refusal, wait_for

STEPS = os.path.join(BUILD, "tests", "bench", "bench_steps")
TRAINER = os.path.join(BUILD, "tests", "bench", "bench_trainer")
ROUNDS = 1000  # a few milliseconds of arithmetic a step
TURN = 2.0
EDGE = 0.1  # of a turn, left out at its beginning
HOSTS = 8
SILENCE = 10
LEASE_SHARE = 0.6  # of the silence


def boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def step_times(path):
    with open(path, "rb") as f:
        content = f.read()
    return struct.unpack(f"{len(content) // 8}q", content[:len(content) // 8 * 8])


def of_job(command, stop):
    """Stops or continues what watches: the launcher last, and first again."""
    watchers = [p for p in command.processes() if p.name in ("hvdlaunch", "hvdkeeper")]
    number = signal.SIGSTOP if stop else signal.SIGCONT
    for p in sorted(watchers, key=lambda p: p.pid, reverse=stop):
        kill(p.pid, number)


def cost(report, pairs):
    folder = tempfile.mkdtemp(prefix="supervision-")
    times = f"{folder}/times"
    with open(f"{folder}/out", "wb") as out:
        command = Supervised([HVDLAUNCH, "-np", "2", "--bind", "core", "--heartbeat-timeout", "1000", "--stall-timeout", "500", "--",
                              STEPS, times, str(ROUNDS)], stdout=out, stderr=out,
                             env=dict(os.environ, XDG_STATE_HOME=f"{folder}/state"))
    try:
        wait_for(lambda: os.path.exists(times) and step_times(times), 30, "the first steps")
        turns = []  # begin, end, watched
        for number in range(2 * pairs):
            # Which of a pair comes first changes, so that a drift of the machine falls on both.
            watched = (number % 4) in (0, 3)
            of_job(command, stop=not watched)
            begin = boot()
            time.sleep(TURN)
            turns.append((begin + EDGE * TURN, boot(), watched))
        of_job(command, stop=False)
        time.sleep(2)
        ends = [t / 1e9 for t in step_times(times)]
    finally:
        command.end()
        shutil.rmtree(folder)
    medians = {True: [], False: []}
    for begin, end, watched in turns:
        inside = [t for t in ends if begin <= t <= end]
        medians[watched].append(statistics.median(b - a for a, b in zip(inside, inside[1:])) * 1000)
    ratios = sorted(a / b for a, b in zip(medians[True], medians[False]))
    report.title(f"time of a step of 2 ranks, watched and not, {pairs} pairs of turns of {TURN:.0f} s")
    report.value("watched", statistics.median(medians[True]), "ms")
    report.value("not watched", statistics.median(medians[False]), "ms")
    report.value("ratio", statistics.median(ratios), f"(quartiles {ratios[len(ratios) // 4]:.4f} {ratios[3 * len(ratios) // 4]:.4f})")


def alarms(report, minutes, busy):
    refusal = lab_refusal()
    if refusal:
        raise SystemExit(f"bench supervision: the alarms are not looked for: {refusal}")
    lab = Lab(HOSTS)
    folder = tempfile.mkdtemp(prefix="supervision-")
    loops = [subprocess.Popen([PYTHON, "-c", "while True: pass"]) for _ in range(busy)]
    seed = int(time.time())
    chance = random.Random(seed)
    stops, loads = 0, []
    try:
        open(f"{lab.shared}/times", "wb").close()
        with open(f"{folder}/out", "wb") as out, open(f"{folder}/err", "wb") as err:
            command = InLab(lab, "head", [
                HVDLAUNCH, "-H", ",".join(f"h{i + 1}:1" for i in range(HOSTS)), "--heartbeat-timeout", str(SILENCE),
                "--stall-timeout", str(2 * SILENCE), "--stall-action", "restart", "--checkpoint-dir", "/srv/lab/ckpt", "--",
                TRAINER, "/srv/lab/times", "20", "128", "50"], stdout=out, stderr=err)
        run = Run(command, folder, lambda host=None: [p for h in lab.hosts for p in lab.processes(h)])
        run.wait_for_workers(HOSTS, 60)
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end and run.running:
            time.sleep(chance.uniform(5, 15))
            kill(run.launcher, signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 0.8 * LEASE_SHARE * SILENCE))
            kill(run.launcher, signal.SIGCONT)
            stops += 1
            loads.append(os.getloadavg()[0])
        told = run.err
        running = run.running
        command.end()
        wait_for(lambda: not any(lab.processes(h) for h in lab.hosts), 60, "the job's end")
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        lab.down()
        shutil.rmtree(folder)
    load = statistics.median(loads)
    false = told.count("attempt ") + (not running)
    report.title(f"{minutes} minutes on {HOSTS} hosts with {busy} busy loops (load {load:.1f}), the launcher stopped {stops} times (seed {seed})")
    report.value("false alarms", false, "")
    if false:
        print(told, file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench supervision")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--loops", type=int, default=2 * os.cpu_count())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = Report("supervision", ["--json"] if options.json else [])
    if options.pairs:
        cost(report, options.pairs)
    if options.minutes:
        alarms(report, options.minutes, options.loops)


main()
