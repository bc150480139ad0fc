"""What the cases of the catalogue share: a job over a lab, moments to strike at that a seed chooses,
and the check of all invariants behind every case.

A case takes its random numbers from the seed and its own name, so that it can be run again alone:
./dev test nemesis --seed S N15. Its name begins with its numbers in the catalogue."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))

from harness import *  # noqa: E402,F403  # for the cases, which find the harness by this module
from harness import SLOWNESS, TRAIN, LabCase, Trained, kill, wait_for  # noqa: E402
from invariants import Histories, Samples, check_no_drafts  # noqa: E402

SEED = int(os.environ.get("HVD_NEMESIS_SEED", "1"))
HOSTS = ["h1", "h2", "h3"]
SPARE = "h4"
RANKS = 6
STEPS, EVERY = 110, 10  # ten epochs
# Until it runs again, beside what the case gives for finding out. The goals are far shorter; the
# machine of these tests is not its own.
AGAIN = 10


def train_alone(steps):
    """What comes out where nothing is done to it: one rank, without a launcher."""
    done = subprocess.run([TRAIN, "--steps", str(steps), "--checkpoint-every", "0"], text=True, check=True,
                          stdout=subprocess.PIPE, timeout=300)
    return Trained(Alone(done.stdout))


@dataclass
class Alone:
    out: str


class NemesisCase(LabCase):
    """Cases on a lab of three hosts and a spare."""

    hosts = 4
    references = {}

    def setUp(self):
        super().setUp()
        self.random = random.Random(f"{SEED} {self._testMethodName}")
        self.ckpt = f"{self.lab.shared}/ckpt"
        self.home = f"{self.lab.state}/hosts/head/root"
        self.samples = Samples(f"{self.lab.shared}/samples", RANKS)
        self.marks = f"{self.lab.shared}/marks"  # for programs and cases to tell each other something
        self.fresh()

    def fresh(self):
        """Nothing of an earlier job of this case counts."""
        for folder in (f"{self.home}/.local/state/hvdlaunch", self.ckpt, self.samples.folder, self.marks):
            shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(self.samples.folder)
        os.mkdir(self.marks)
        for host in self.lab.hosts:
            if not self.lab.is_on(host):
                self.lab("boot", host)
            elif host != "head":
                self.lab.start_sshd(host)

    def run(self, result=None):
        before = result and len(result.failures) + len(result.errors)
        super().run(result)
        if result and len(result.failures) + len(result.errors) > before:
            number = re.match(r"test_(n\d+)_", self._testMethodName)[1].upper()
            print(f"\nnemesis: to replay: ./dev test nemesis --seed {SEED} {number}", flush=True)

    def tell(self, text):
        print(f"\nnemesis: {self._testMethodName}: {text}", flush=True)

    # ---- the job ----

    def program(self, steps=STEPS, every=EVERY, step_ms=20):
        return [TRAIN, "--steps", str(steps), "--checkpoint-every", str(every), "--step-ms", str(step_ms),
                "--samples", "/srv/lab/samples"]

    def train(self, *options, heartbeat="2", spares=(SPARE,), ckpt="/srv/lab/ckpt", program=None, **more):
        return self.start("-np", str(RANKS), "-H", self.host_file(HOSTS, 2, spares), "--heartbeat-timeout",
                          heartbeat, "--checkpoint-dir", ckpt, *options, *(program or self.program()), **more)

    def reference(self, steps=STEPS):
        """The undisturbed result, made once."""
        if steps not in self.references:
            self.references[steps] = train_alone(steps)
        return self.references[steps]

    # ---- moments ----

    @staticmethod
    def soon(condition, seconds, what):
        """As wait_for, for what does not last."""
        deadline = time.monotonic() + seconds * SLOWNESS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s for {what}")
            time.sleep(0.0005)

    def a_while(self, longest):
        time.sleep(self.random.uniform(0, longest))

    def drafts(self):
        """Folders of checkpoints on their way."""
        with contextlib.suppress(FileNotFoundError):
            return [os.path.join(self.ckpt, n) for n in os.listdir(self.ckpt) if ".tmp-" in n]
        return []

    def _shards(self, folder):
        with contextlib.suppress(FileNotFoundError):
            return len([n for n in os.listdir(folder) if n.startswith("rank-")])
        return 0

    def agent_processes(self):
        return [p for h in HOSTS for p in self.lab.processes(h)]

    def at(self, run, phase):
        """Waits for a moment in a phase of the job."""
        said = lambda: f"{phase}\n{run}"
        done = lambda: (self.samples.newest() or (None, -1))[1]
        if phase == "launch":
            return self.a_while(0.1)
        if phase == "ssh":
            self.soon(self.agent_processes, 20, said)
            return self.a_while(0.1)
        if phase == "rendezvous":
            self.soon(lambda: len(run.workers()) == RANKS, 20, said)
            return self.a_while(0.03)
        if phase == "persist":
            self.wait_for_steps(run, self.random.randint(EVERY, 3 * EVERY))
            return self.soon(self.drafts, 20, said)
        if phase == "commit":
            self.wait_for_steps(run, self.random.randint(EVERY, 3 * EVERY))
            return self.soon(lambda: any(self._shards(d) == RANKS for d in self.drafts()), 20, said)
        if phase == "shutdown":
            self.soon(lambda: done() >= STEPS - 2, 30, said)
            return self.a_while(0.08)
        assert phase == "step", phase
        self.wait_for_steps(run, self.random.randint(2, 4 * EVERY))
        return self.a_while(0.03)

    def wait_for_steps(self, run, count):
        def done():
            if not run.running:
                raise AssertionError(f"ended before step {count}\n{run}")
            newest = self.samples.newest()
            return newest and newest[1] >= count

        wait_for(done, 30, lambda: f"step {count}\n{run}")

    @contextlib.contextmanager
    def in_collective(self, run, spared=()):
        """All ranks but one, which stands still, wait in a collective."""
        self.at(run, "step")
        workers = run.workers()
        still = self.random.choice([r for r in workers if r not in spared])
        kill(workers[still].pid, signal.SIGSTOP)
        try:
            time.sleep(0.06)  # longer than a step
            yield workers
        finally:
            with contextlib.suppress(ProcessLookupError):
                kill(workers[still].pid, signal.SIGCONT)

    # ---- what follows a fault ----

    def now(self):
        """The attempt that runs."""
        newest = self.samples.newest()
        return newest and newest[0]

    def assert_runs_again(self, before, run, struck, within=0):
        """I1: another attempt does steps, so many seconds and AGAIN after the fault at most."""
        wait_for(lambda: self.now() not in (None, before) or not run.running, within + AGAIN,
                 lambda: f"it to run again\n{run}")
        self.tell(f"runs again {time.monotonic() - struck:.2f} s after the fault")

    def assert_goes_on(self, run, steps=8, within=0):
        """The same attempt does more steps."""
        attempt, step = self.samples.newest()
        wait_for(lambda: self.samples.newest()[1] >= min(step + steps, STEPS - 1) or not run.running,
                 within + AGAIN, lambda: f"more steps\n{run}")
        self.assertEqual(self.now(), attempt, str(run))

    def attempts(self, run):
        """Attempts of this launch alone."""
        return 1 + len(re.findall(r"attempt \d+ goes on from", run.err))

    def assert_invariants(self, run, causes=(), attempts=None, steps=STEPS):
        """The job of this run ended well, and all that must hold of it does."""
        self.assert_code(run.wait(), 0)
        reference = self.reference(steps)
        self.assertEqual(Trained(run).sha256, reference.sha256, str(run))
        for cause in causes:
            self.assertRegex(run.err, cause)
        if attempts is not None:
            self.assertIn(self.attempts(run), [attempts] if isinstance(attempts, int) else attempts, str(run))
        self.samples.check(steps, reference.sha256)
        histories = Histories(self.home)
        acknowledged = histories.check()
        check_no_drafts(self.ckpt, histories.refused())
        self.assert_nothing_left()
        self.assert_newest_loads(acknowledged, reference)

    def assert_newest_loads(self, acknowledged, reference):
        run = self.launch("resume", "/srv/lab/ckpt")
        self.assert_code(run, 0)
        trained = Trained(run)
        self.assertEqual(trained.sha256, reference.sha256, str(run))
        self.assertGreaterEqual(trained.resumed_at, acknowledged or 0, str(run))
        self.assert_nothing_left()
