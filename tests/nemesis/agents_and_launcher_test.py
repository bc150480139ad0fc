"""Agents, keepers, connections and the launcher that end or stand still, and two
launchers for one folder: N5-N9, N14, N34."""

import signal
import subprocess
import time

from faults import Faults
from nemesis import HOSTS, RANKS, SPARE, LAB, NemesisCase, committed_steps, is_alive, kill, main, needs_lab, wait_for


@needs_lab
class AgentsTest(NemesisCase):
    def setUp(self):
        super().setUp()
        self.faults = Faults(self, HOSTS, 2)

    def strike(self, run, fault, phase="step"):
        """One fault in a phase, and the job runs again."""
        self.at(run, phase)
        before, old = self.now(), run.workers()
        began = time.monotonic()
        struck = fault(run)
        self.assertIsNotNone(struck, str(run))
        self.assert_runs_again(before, run, began, struck.within)
        self.assertEqual([r for r, p in old.items() if is_alive(p.pid)], [], "ranks run twice")
        if struck.heal:
            struck.heal()
        return struck

    def test_n5_an_agent_is_killed(self):
        run = self.train()
        struck = self.strike(run, self.faults.kill_agent)
        self.assert_invariants(run, [struck.cause], attempts=2)

    def test_n5_a_keeper_is_killed(self):
        run = self.train()
        struck = self.strike(run, self.faults.kill_keeper)
        self.assert_invariants(run, [struck.cause], attempts=2)

    def test_n5_an_agent_is_killed_in_every_other_phase(self):
        for phase in ("ssh", "rendezvous", "persist", "commit", "shutdown"):
            with self.subTest(phase=phase):
                run = self.train()
                self.at(run, phase)
                self.faults.kill_agent(run)
                self.assert_invariants(run, attempts=range(1, 3))
                self.fresh()

    def test_n6_a_connection_that_breaks_costs_no_budget(self):
        # Twice, the second time before there was any progress: with a budget of one.
        run = self.train("--max-restarts", "1")
        self.strike(run, self.faults.kill_session)
        if run.running:
            self.faults.kill_session(run)
        self.assert_invariants(run, ["SSH connection to h"], attempts=range(2, 4))

    def test_n7_a_host_whose_sshd_is_gone_is_replaced_when_its_agent_ends(self):
        host = self.random.choice(HOSTS)
        run = self.train()
        self.at(run, "step")
        kill(self.lab.listener(host).pid)
        self.addCleanup(self.lab.start_sshd, host)
        self.assert_goes_on(run)  # an agent that runs does not need it
        before, struck = self.now(), time.monotonic()
        kill(run.agents(host)[0][1].pid)
        self.assert_runs_again(before, run, struck, within=3)
        run.wait()
        self.lab.start_sshd(host)
        self.assert_invariants(run, [rf"the spare {SPARE} takes the ranks of {host}"], attempts=2)

    def test_n8_the_launcher_is_killed_and_the_job_resumed(self):
        for phase in ("launch", "ssh", "rendezvous", "step", "persist", "commit", "shutdown"):
            with self.subTest(phase=phase):
                run = self.train()
                self.at(run, phase)
                began = time.monotonic()
                kill(run.launcher)
                self.assertIn(run.wait(10).code, (0, 137))  # it may have been done
                self.assert_nothing_left()
                self.tell(f"{phase}: nothing is left {time.monotonic() - began:.2f} s after the launcher")
                newest = committed_steps(self.ckpt)
                if run.code == 137:
                    run = self.start("resume", "/srv/lab/ckpt")
                    if not newest:
                        self.assert_code(run.wait(), 3)
                        run = self.train()
                self.assert_invariants(run)
                self.fresh()

    def test_n8_the_launcher_is_killed_and_the_next_one_takes_over(self):
        for phase in ("launch", "ssh", "rendezvous", "step", "persist", "commit"):
            with self.subTest(phase=phase):
                run = self.train("--survive", "60")
                self.at(run, phase)
                kill(run.launcher)
                self.assertIn(run.wait(10).code, (0, 137))
                began = time.monotonic()
                if run.code == 137:
                    run = self.start("attach")
                    wait_for(lambda: run.workers() or not run.running, 20, lambda: f"the job to go on\n{run}")
                    self.tell(f"{phase}: watched again {time.monotonic() - began:.2f} s after the launcher")
                    if run.wait().code in (2, 3):  # before there was anything to take over, or after all of it
                        run = self.train()
                self.assert_invariants(run)
                self.fresh()

    def test_n9_every_way_to_stop_the_launcher(self):
        ways = [("INT once", [signal.SIGINT], (130, 75)), ("INT twice", [signal.SIGINT] * 2, (130, 75)),
                ("TERM", [signal.SIGTERM], (143, 75)), ("HUP", [signal.SIGHUP], (129, 75)), ("PIPE", [], (141, 75))]
        for name, signals, codes in ways:
            with self.subTest(name):
                # The reader of its output goes away.
                reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                run = self.train(stdout=reader.stdin)
                self.at(run, "step")
                while len(committed_steps(self.ckpt)) < 1:
                    time.sleep(0.01)
                if not signals:
                    reader.kill()
                reader.stdin.close()
                for number in signals:
                    kill(run.launcher, number)
                    time.sleep(0.3)
                    if not run.running:
                        break
                self.assertIn(run.wait(40).code, codes, str(run))
                reader.kill()
                reader.wait()
                self.assert_nothing_left()
                self.assertIn("to go on: hvdlaunch resume /srv/lab/ckpt", run.err)
                self.assert_invariants(self.start("resume", "/srv/lab/ckpt"))
                self.fresh()

    def test_n14_a_stopped_agent_loses_its_ranks_before_they_start_again(self):
        run = self.train()
        struck = self.strike(run, self.faults.stop_agent)
        self.assert_invariants(run, [struck.cause], attempts=2)

    def test_n14_a_launcher_that_stands_still_for_less_than_the_lease(self):
        run = self.train()
        for _ in range(3):
            self.at(run, "step")
            self.faults.stop_launcher(run)
            self.assert_goes_on(run)
        self.assert_invariants(run, attempts=1)

    def test_n14_a_launcher_that_stands_still_for_longer_than_the_lease(self):
        for still in (self.random.uniform(1, 5), 60):
            with self.subTest(still=still):
                run = self.train(heartbeat="1")
                self.at(run, "step")
                before, old, pid = self.now(), run.workers(), run.launcher
                kill(pid, signal.SIGSTOP)
                began = time.monotonic()
                wait_for(lambda: not any(is_alive(p.pid) for p in old.values()), 5, "the ranks to end by their lease")
                self.tell(f"all ranks are dead {time.monotonic() - began:.2f} s after the launcher stopped")
                time.sleep(max(0, began + still - time.monotonic()))
                self.faults.wake_launcher(pid)
                self.assert_runs_again(before, run, time.monotonic())
                self.assert_invariants(run, attempts=range(2, 4))
                self.fresh()

    def test_n34_one_of_two_that_resume_a_folder_goes_on(self):
        first = self.train()
        self.at(first, "step")
        wait_for(lambda: committed_steps(self.ckpt), 20, lambda: f"a checkpoint\n{first}")
        # While it lives, from another host too.
        for host in ("head", HOSTS[0]):
            run = self.launch("resume", "/srv/lab/ckpt", host=host)
            self.assert_code(run, 2)
            self.assertRegex(run.err, "/srv/lab/ckpt is in use by job .* since ")
        self.assert_goes_on(first)
        kill(first.launcher)
        first.wait()
        runs = []
        for _ in range(2):
            runs.append(self.start("resume", "/srv/lab/ckpt"))
            self.a_while(0.05)
        loser, winner = sorted(runs, key=lambda run: -run.wait().code)
        self.assert_code(loser, 2)
        self.assertRegex(loser.err, "/srv/lab/ckpt is in use by job .* since ")
        self.assert_invariants(winner)


if __name__ == "__main__":
    main()
