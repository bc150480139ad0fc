"""Two failures, the second within half a second of the first, in the recovery from it, in a commit or at the
end: N40."""

import contextlib
import time

from faults import ENDED, Faults
from nemesis import HOSTS, RANKS, SPARE, NemesisCase, committed_steps, kill, main, needs_lab, wait_for

PAIRS = 6


@needs_lab
class CombinedTest(NemesisCase):
    def setUp(self):
        super().setUp()
        self.faults = Faults(self, [*HOSTS, SPARE], 2)

    def train_on(self):
        return self.train("--max-restarts", "20", "--stall-timeout", "0.6", "--stall-action", "restart",
                          "--failure-grace", "1")

    def finish(self, run, heals):
        """Hosts come back, and the job goes on to its end; resumed if its launcher is gone."""
        time.sleep(self.random.uniform(0, 1))
        for heal in heals:
            heal()
        run.wait(90)
        for host in [*HOSTS, SPARE]:
            for pid in self.faults.sessions(host):
                self.faults.signal(pid, 9)  # of connections that were cut for ever
        if run.code in (137, 130, 143, 129, 75):
            self.assert_nothing_left(20)
            resumable = committed_steps(self.ckpt)
            run = self.start("resume", "/srv/lab/ckpt") if resumable else self.train_on()
        self.assert_invariants(run)

    def strike(self, run, names):
        """These faults within half a second; what heals them."""
        heals, told = [], []
        for name in names:
            struck = None
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                struck = getattr(self.faults, name)(run) if run.running else None
            if struck:
                told.append(struck.told)
                heals += [struck.heal] if struck.heal else []
                if struck.outcome == ENDED:
                    break
            time.sleep(self.random.uniform(0, 0.5))
        self.tell("; ".join(told))
        return heals

    def test_n40_any_two_within_half_a_second(self):
        kinds = [*Faults.SINGLE, "kill_all_workers", "kill_launcher", "interrupt_launcher", "stop_launcher"]
        for number in range(PAIRS):
            names = self.random.sample(kinds, 2)
            with self.subTest(number=number, names=names):
                run = self.train_on()
                self.at(run, self.random.choice(["step", "persist", "commit"]))
                self.finish(run, self.strike(run, names))
                self.fresh()

    def test_n40_a_fault_in_the_recovery_from_another(self):
        run = self.train_on()
        self.at(run, "step")
        for second in ("kill_worker", "kill_agent", "kill_keeper"):
            if not run.running:
                break
            before = self.now()
            self.faults.kill_worker(run)
            # The new attempt's ranks are there, and have not done a step.
            attempts = self.attempts(run)
            wait_for(lambda: self.attempts(run) > attempts or not run.running, 10, lambda: f"a new attempt\n{run}")
            getattr(self.faults, second)(run)
            wait_for(lambda: not run.running or self.now() != before, 20, lambda: f"it to run again\n{run}")
            self.wait_for_more(run)
        self.assert_invariants(run, attempts=range(2, 8))

    def wait_for_more(self, run):
        step = self.samples.newest()[1]
        wait_for(lambda: not run.running or self.samples.newest()[1] > step + 5, 20, lambda: f"more steps\n{run}")

    def test_n40_a_host_is_lost_in_the_commit_and_a_rank_at_the_end(self):
        run = self.train_on()
        self.at(run, "commit")
        struck = self.faults.power_off(run)
        self.at(run, "shutdown")
        with contextlib.suppress(KeyError, ProcessLookupError):
            kill(run.workers()[self.random.randrange(RANKS)].pid)
        self.finish(run, [struck.heal] if struck else [])


if __name__ == "__main__":
    main()
