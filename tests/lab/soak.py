"""soak.py [--faults N] [--seed S]: random faults over a lab, one job after the other, the result
checked each time. Prints the seed; the same seed gives the same choice of faults."""

import argparse
import os
import random
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import training
from harness import LabCase, Trained, kill, lab_refusal, unittest, wait_for

HOSTS = ["h1", "h2", "h3"]


class Soak(LabCase):
    hosts = 5  # two spares
    faults = 20
    seed = 1

    def one_of(self, things):
        return self.random.choice(sorted(things))

    # ---- the faults; each returns what it did, or None if there was nothing to do it to ----

    def kill_rank(self, run):
        workers = run.workers()
        if not workers:
            return None
        rank = self.one_of(workers)
        kill(workers[rank].pid)
        return f"rank {rank} killed"

    def signal_agent(self, run, number, part):
        host = self.one_of(HOSTS)
        pairs = run.agents(host)
        if not pairs:
            return None
        kill(pairs[0][part].pid, number)
        return f"{'keeper' if part == 0 else 'agent'} of {host} got signal {int(number)}"

    def kill_agent(self, run):
        return self.signal_agent(run, signal.SIGKILL, 1)

    def stop_agent(self, run):
        return self.signal_agent(run, signal.SIGSTOP, 1)

    def kill_keeper(self, run):
        return self.signal_agent(run, signal.SIGKILL, 0)

    def power_off(self, _):
        on = [h for h in HOSTS if self.lab.is_on(h)]
        if len(on) < len(HOSTS):
            return None
        host = self.one_of(on)
        self.lab("kill", host)
        return f"{host} powered off"

    def short_cut(self, _):
        host = self.one_of(h for h in HOSTS if self.lab.is_on(h))
        self.lab("cut", host)
        time.sleep(self.random.uniform(0.1, 1.0))
        self.lab("heal", host)
        return f"{host} cut for a moment"

    def kill_launcher(self, run):
        kill(run.launcher)
        return "launcher killed"

    # ---- the soak ----

    def launch_job(self):
        return self.start("-np", "6", "-H", self.host_file(HOSTS, 2, ["h4", "h5"]), "--heartbeat-timeout", "2",
                          "--max-restarts", "50", "--checkpoint-dir", "/srv/lab/ckpt",
                          *training.program(step_ms=20))

    def disturb(self, run):
        """One fault at a random moment; what it was."""
        moment = time.monotonic() + self.random.uniform(0.2, 3)
        wait_for(lambda: time.monotonic() > moment or not run.running, 5, "the moment")
        if not run.running:
            return None
        fault = self.random.choice([self.kill_rank, self.kill_agent, self.stop_agent, self.kill_keeper,
                                    self.power_off, self.short_cut, self.kill_launcher])
        told = fault(run)
        if told:
            self.done += 1
            print(f"soak: fault {self.done} of {self.faults}: {told}", flush=True)
        return told

    def one_job(self):
        """One job, disturbed until it ends; resumed when its launcher was killed."""
        shutil.rmtree(f"{self.lab.shared}/ckpt", ignore_errors=True)
        for host in self.lab.hosts:
            if not self.lab.is_on(host):
                self.lab("boot", host)
        run = self.launch_job()
        for _ in range(self.random.randint(1, 3)):
            if self.done < self.faults and self.disturb(run) == "launcher killed":
                run.wait(20)
                self.assert_nothing_left()
                run = self.resume_or_launch()
        self.assert_code(run.wait(120), 0)
        self.assertEqual(Trained(run).sha256, self.reference.sha256, str(run))
        self.assert_nothing_left()
        self.jobs += 1

    def resume_or_launch(self):
        run = self.start("resume", "/srv/lab/ckpt")
        wait_for(lambda: not run.running or run.workers(), 30, "the resumed job")
        return self.launch_job() if run.code == 3 else run  # nothing was saved yet

    def test_soak(self):
        self.random = random.Random(self.seed)
        self.done = self.jobs = 0
        print(f"soak: seed {self.seed}", flush=True)
        reference = self.launch("-np", "1", *training.program())
        self.reference = Trained(reference)
        while self.done < self.faults:
            self.one_job()
        print(f"soak: {self.done} faults over {self.jobs} jobs, every result the same", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev soak")
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    refusal = lab_refusal()
    if refusal:
        sys.exit(f"soak: {refusal}")
    Soak.faults, Soak.seed = options.faults, options.seed
    program = unittest.main(argv=[sys.argv[0]], exit=False)
    sys.exit(not program.result.wasSuccessful())


main()
