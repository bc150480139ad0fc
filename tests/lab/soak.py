"""soak.py [--faults N] [--seed S] [--minutes M]: random faults over a lab, many of them over one
job, one job after the other. After every fault the job must run again within a bound; after every
job its result must be that of an undisturbed one, each sample used once per epoch, nothing left, and
launcher and agents no larger than they were. Ends at the first thing that is not so, with the command
to run again. The same seed gives the same choice of faults."""

import argparse
import collections
import contextlib
import os
import random
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nemesis"))
import nemesis
from faults import ENDED, GOES_ON, RELAUNCHED, Faults, Struck
from harness import SLOWNESS, BUILD, TRAIN, LabCase, Trained, is_alive, lab_refusal, own_cgroup, unittest, wait_for
from invariants import Histories, Samples, check_no_drafts

HOSTS = ["h1", "h2", "h3"]
SPARES = ["h4", "h5"]
RANKS = 6
HEARTBEAT = 1.0
EVERY = 20
FAULTS_PER_JOB = 100
# An epoch is 11 steps. Long enough for the faults of a job, and little longer.
STEPS_PER_FAULT = 33
AGAIN = 20  # seconds; see nemesis.py

# How often of a hundred. Half of them hit workers.
WEIGHTS = {
    "kill_worker": 16, "crash_worker": 8, "kill_host_workers": 4, "kill_all_workers": 3, "slow_worker": 4,
    "stop_worker": 10, "kill_agent": 6, "kill_keeper": 3, "stop_agent": 3, "kill_session": 4,
    "lose_sshd": 2, "power_off": 4, "crash_host": 2, "short_cut": 4, "middling_cut": 3, "long_cut": 3,
    "slow_link": 2, "kill_launcher": 3, "interrupt_launcher": 1, "stop_launcher": 3, "fail_save": 4,
    "corrupt_newest": 3, "two": 5,
}
# A job in which the launcher lives through all faults: what it holds must not grow.
ENDS_LAUNCHER = ("kill_launcher", "interrupt_launcher")
GROWTH_KIB, GROWTH_FDS = 2048, 4


class Held:
    """Memory and descriptors of processes, looked at again and again."""

    def __init__(self):
        self.seen = collections.defaultdict(list)  # by (name, pid): (KiB, descriptors)

    def look(self, name, pid):
        with contextlib.suppress(OSError, StopIteration):
            with open(f"/proc/{pid}/status") as f:
                kib = next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
            self.seen[name, pid].append((kib, len(os.listdir(f"/proc/{pid}/fd"))))

    def growth(self):
        """(name, KiB, descriptors, looks): the last quarter's least against the first quarter's most."""
        for (name, _), seen in self.seen.items():
            quarter = len(seen) // 4
            if quarter < 3:
                continue
            early, late = seen[:quarter], seen[-quarter:]
            yield (name, *(min(x[i] for x in late) - max(x[i] for x in early) for i in (0, 1)), len(seen))


class Soak(LabCase):
    hosts = len(HOSTS + SPARES)
    faults, seed, minutes = 20, 1, None

    def setUp(self):
        super().setUp()
        self.ckpt = f"{self.lab.shared}/ckpt"
        self.home = f"{self.lab.state}/hosts/head/root"
        self.random = random.Random(self.seed)
        self.faults_of = Faults(self, HOSTS + SPARES, HEARTBEAT)
        self.done = self.jobs = 0
        self.count = collections.Counter()
        self.again = collections.defaultdict(list)
        self.false_alarms = 0
        self.started = time.monotonic()

    # ---- a job ----

    def train(self, steps):
        for host in HOSTS + SPARES:
            with open(f"{self.lab.state}/hosts/{host}/root/.bashrc", "w") as f:
                f.write(f"export LD_PRELOAD={BUILD}/tests/nemesis/libnemesis_shim.so\n")
        return self.start(
            "-np", str(RANKS), "-H", self.host_file(HOSTS, 2, SPARES), "--heartbeat-timeout", str(HEARTBEAT),
            "--max-restarts", "1000", "--max-host-failures", "0", "--stall-timeout", "0.7", "--stall-action",
            "restart", "--failure-grace", "1", "--start-timeout", "30", "--checkpoint-dir", "/srv/lab/ckpt", TRAIN,
            "--steps", str(steps), "--checkpoint-every", str(EVERY), "--step-ms", "10", "--samples",
            "/srv/lab/samples", "--keep-every", str((self.jobs // 2 + self.seed) % 2))

    def resume(self, run, steps):
        """After the launcher's end."""
        run.wait(30)
        self.assertIn(run.code, (137, 130, 143, 129, 75), str(run))
        self.assert_nothing_left(20)
        run = self.start("resume", "/srv/lab/ckpt")
        wait_for(lambda: not run.running or self.now() != self.before, AGAIN, lambda: f"the resumed job\n{run}")
        return self.train(steps) if run.code == 3 else run  # nothing was saved yet

    def now(self):
        newest = self.samples.newest()
        return newest and newest[0]

    def wait_until_it_runs(self, run, struck, step):
        """I1; returns the seconds it took."""
        began = time.monotonic()

        def runs():
            if not run.running:
                return True
            newest = self.samples.newest()
            if newest is None or newest == (self.before, step):
                return False
            other = newest[0] != self.before
            if struck.outcome == RELAUNCHED:
                return other
            return other or newest[1] > step + 3

        if struck.heal:  # without a spare it is what the job waits for
            with contextlib.suppress(AssertionError):
                wait_for(runs, (struck.within + 1) / SLOWNESS, "")
            struck.heal()
        wait_for(runs, struck.within + AGAIN, lambda: f"it to run again after: {struck.told}\n{run}")
        if struck.outcome == GOES_ON and self.now() != self.before:
            self.false_alarms += 1
            print(f"soak: that was taken for a failure: {run.err[-600:]}", flush=True)
        return time.monotonic() - began

    def strike(self, run, kinds):
        """One fault; None where there was nothing to do it to."""
        time.sleep(self.random.expovariate(1 / 0.35) % 1.5)
        if not run.running:
            return None, None
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        newest = self.samples.newest()
        self.before, step = newest or (None, -1)
        struck = getattr(self.faults_of, kind)(run)
        if struck:
            self.done += 1
            self.count[kind] += 1
            print(f"soak: {self.done} of {self.faults}, {time.monotonic() - self.started:.0f} s: {kind}: "
                  f"{struck.told}", flush=True)
        return struck, (kind, step)

    def more(self):
        late = self.minutes and time.monotonic() > self.started + self.minutes * 60
        return self.done < self.faults and not late

    def one_job(self):
        self.jobs += 1
        lives = self.jobs % 2 == 1
        kinds = {k: w for k, w in WEIGHTS.items() if not (lives and k in ENDS_LAUNCHER)}
        for folder in (self.ckpt, f"{self.home}/.local/state/hvdlaunch", f"{self.lab.shared}/samples"):
            shutil.rmtree(folder, ignore_errors=True)
        self.samples = Samples(f"{self.lab.shared}/samples", RANKS)
        os.mkdir(self.samples.folder)
        count = min(FAULTS_PER_JOB, self.faults - self.done)
        steps = count * STEPS_PER_FAULT
        run, held, last = self.train(steps), Held(), self.done + count
        wait_for(lambda: self.now() or not run.running, 30, lambda: f"the first step\n{run}")
        self.before = None
        while self.more() and self.done < last and run.running:
            struck, which = self.strike(run, kinds)
            if not struck:
                continue
            if struck.outcome == ENDED:
                began = time.monotonic()
                if run.wait(30).code != 0:
                    run = self.resume(run, steps)
                self.again[which[0]].append(time.monotonic() - began)
            else:
                self.again[which[0]].append(self.wait_until_it_runs(run, struck, which[1]))
                self.assertIn(run.code, (None, 0), str(run))
            self.look(run, held)
        self.finish(run, steps, held)

    def look(self, run, held):
        with contextlib.suppress(AssertionError, ProcessLookupError, OSError):
            if run.running:
                held.look("launcher", run.launcher)
            for host in HOSTS + SPARES:
                if len(self.faults_of.ranks_on(host)) != RANKS // len(HOSTS):
                    continue  # a spare holds less
                for keeper, agent in run.agents(host):
                    held.look(f"keeper of {host}", keeper.pid)
                    held.look(f"agent of {host}", agent.pid)

    def finish(self, run, steps, held):
        self.assert_code(run.wait(300), 0)
        sha256 = nemesis.train_alone(steps).sha256
        self.assertEqual(Trained(run).sha256, sha256, str(run))
        self.samples.check(steps, sha256)
        histories = Histories(self.home)
        histories.check()
        check_no_drafts(self.ckpt, histories.refused())
        for host in self.lab.hosts:
            if not self.lab.is_on(host):
                self.lab("boot", host)
        self.end_deaf_sessions()
        self.assert_nothing_left(20)
        grown = list(held.growth())
        for name, kib, descriptors, looks in grown:
            self.assertLessEqual(kib, GROWTH_KIB, f"{name} grew over {looks} looks")
            self.assertLessEqual(descriptors, GROWTH_FDS, f"{name} holds more descriptors after {looks} looks")
        most = max(grown, key=lambda g: g[1], default=("none", 0, 0, 0))
        print(f"soak: job {self.jobs}: {steps} steps, the same result; grew most: {most[0]} by {most[1]} KiB "
              f"(bound {GROWTH_KIB}) and {max([g[2] for g in grown] or [0])} descriptors (bound {GROWTH_FDS})",
              flush=True)
        self.runs.clear()  # their output is not needed any more

    def end_deaf_sessions(self):
        """sshd waits for a connection that was cut for ever."""
        for host in HOSTS + SPARES:
            for pid in self.faults_of.sessions(host):
                self.faults_of.signal(pid, 9)

    def test_soak(self):
        print(f"soak: seed {self.seed}", flush=True)
        try:
            while self.more():
                self.one_job()
        except BaseException:
            print(f"soak: to run it again: ./dev soak --faults {self.faults} --seed {self.seed}", flush=True)
            raise
        spent = time.monotonic() - self.started
        print(f"soak: {self.done} faults of {len(self.count)} kinds over {self.jobs} jobs in {spent:.0f} s, "
              f"{spent / max(1, self.done):.2f} s each; every result the same, each sample once per epoch, "
              f"nothing left; {self.false_alarms} taken for failures that were none", flush=True)
        for kind, times in sorted(self.again.items()):
            times.sort()
            print(f"soak: {kind:20} {len(times):4} times, runs again after p50 {times[len(times) // 2]:.2f} s, "
                  f"longest {times[-1]:.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev soak")
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float)
    options = parser.parse_args()
    refusal = lab_refusal()
    if refusal:
        sys.exit(f"soak: {refusal}")
    Soak.faults, Soak.seed, Soak.minutes = options.faults, options.seed, options.minutes
    with own_cgroup():
        program = unittest.main(argv=[sys.argv[0]], exit=False)
    sys.exit(not program.result.wasSuccessful())


main()
