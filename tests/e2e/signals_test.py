"""Stopping by the user, and processes of the product that are killed or stopped, on this machine.
After each test the harness finds nothing left of the job."""

import glob
import os
import shutil
import signal
import time
import unittest

from harness import PROGRAMS, PYTHON, Case, dead_cgroups, is_alive, kill, lines_of, main, wait_for

STUBBORN = [PYTHON, f"{PROGRAMS}/stubborn.py"]
SAVES = [PYTHON, f"{PROGRAMS}/saves_on_term.py"]


class StopTest(Case):
    def waiting(self, *options, program=SAVES, size=2, word="waiting"):
        run = self.start("-np", str(size), *options, "--", *program)
        wait_for(lambda: run.out.count(word) == size, 30, lambda: f"{size} ranks to say '{word}'\n{run}")
        return run

    def stop(self, number, code):
        run = self.waiting()
        kill(run.launcher, number)
        self.assert_code(run.wait(20), code)
        self.assertEqual(run.out.count("saved"), 2)

    def test_interrupt_lets_workers_save(self):
        self.stop(signal.SIGINT, 130)

    def test_terminate_lets_workers_save(self):
        self.stop(signal.SIGTERM, 143)

    def test_hang_up_lets_workers_save(self):
        self.stop(signal.SIGHUP, 129)

    def test_a_terminal_interrupts_the_whole_group(self):
        run = self.waiting()
        os.killpg(run.launcher, signal.SIGINT)  # as a terminal does
        self.assert_code(run.wait(20), 130)
        self.assertEqual(run.out.count("saved"), 2)

    def test_a_second_interrupt_does_not_wait(self):
        run = self.waiting("--grace", "100", program=STUBBORN + [self.dir], word="settled")
        kill(run.launcher, signal.SIGINT)
        time.sleep(0.5)  # the stop is under way
        self.assertTrue(run.running)
        started = time.monotonic()
        kill(run.launcher, signal.SIGINT)
        self.assert_code(run.wait(20), 130)
        self.assert_within(started, 10)

    def test_the_grace_ends_those_that_do_not_listen(self):
        run = self.waiting("--grace", "1", program=STUBBORN + [self.dir], word="settled")
        kill(run.launcher, signal.SIGTERM)
        self.assert_code(run.wait(20), 143)

    def test_the_grace_after_a_failure(self):
        script = f'[ $HVD_RANK = 0 ] || {{ sleep 0.5; exit 5; }}; exec {" ".join(STUBBORN)} {self.dir}'
        run = self.launch("-np", "2", "--failure-grace", "1", "sh", "-c", script, timeout=30)
        self.assert_code(run, 5)


class LossTest(Case):
    """Parts of the product die; whatever is left of it cleans up."""

    def settled(self, *options):
        run = self.start("-np", "2", "--heartbeat-timeout", "2", *options, "--", *STUBBORN, self.dir)
        wait_for(lambda: self.pids_count() == 4, 30, lambda: f"4 worker processes\n{run}")
        return run

    def pids_count(self):
        return len(self.worker_pids())

    def worker_pids(self):
        return [int(n) for n in os.listdir(self.dir) if n.isdigit()]

    def assert_workers_die(self, seconds):
        wait_for(lambda: not any(map(is_alive, self.worker_pids())), seconds, "the workers to be dead")

    def the_agent(self, run):
        pairs = run.agents()
        self.assertEqual(len(pairs), 1, lambda: f"one keeper and one agent\n{run}")
        return pairs[0]

    def test_a_killed_launcher_leaves_nothing(self):
        run = self.settled()
        kill(run.launcher)
        self.assert_workers_die(5)
        self.assert_nothing_left(5)

    def test_a_stopped_launcher_costs_the_lease(self):
        run = self.settled()
        kill(run.launcher, signal.SIGSTOP)
        self.assert_workers_die(5)
        kill(run.launcher, signal.SIGCONT)
        run.wait(20)
        self.assertNotEqual(run.code, 0)

    def test_a_launcher_that_wakes_behind_the_lease_goes_on_and_rests(self):
        script = "[ $HVD_ATTEMPT = 2 ] && exec sleep 1; exec sleep 1000"
        run = self.start("-np", "2", "--heartbeat-timeout", "0.5", "--max-restarts", "1", "sh", "-c", script)
        # By then it keeps a history, to which waking up adds much.
        wait_for(lambda: glob.glob(self.path("home/state/hvdlaunch/jobs/*/events.jsonl")), 10, "the history")
        ranks = [p.pid for p in run.workers().values()]
        kill(run.launcher, signal.SIGSTOP)
        wait_for(lambda: not any(is_alive(pid) for pid in ranks), 5, "the ranks to end")
        kill(run.launcher, signal.SIGCONT)
        run.wait_for_text("attempt 2 goes on")
        self.assert_code(run.wait(20), 0)

    def test_a_killed_agent_takes_its_workers_along(self):
        run = self.settled()
        kill(self.the_agent(run)[1].pid)
        self.assert_workers_die(5)
        self.assert_code(run.wait(20), 70)

    def test_a_killed_keeper_takes_everything_along(self):
        run = self.settled()
        kill(self.the_agent(run)[0].pid)
        self.assert_workers_die(5)
        self.assert_code(run.wait(20), 70)

    def test_a_stopped_agent_loses_its_workers_before_the_silence_limit(self):
        run = self.settled()
        stopped = time.monotonic()
        kill(self.the_agent(run)[1].pid, signal.SIGSTOP)
        self.assert_workers_die(2)
        self.assertLess(time.monotonic() - stopped, 2.0, "the silence limit")
        self.assert_code(run.wait(20), 70)

    def test_ranks_do_not_outlive_keeper_and_agent(self):
        run = self.settled()
        keeper, agent = self.the_agent(run)
        ranks = [p.pid for p in run.workers().values()]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            kill(agent.pid, number)
            kill(keeper.pid, number)
        self.assertNotEqual(run.wait(20).code, 0)
        wait_for(lambda: not any(map(is_alive, ranks)), 5, "the ranks to be dead")
        # What the ranks started has lost both its guards: nobody is left who could clean up.
        for pid in self.worker_pids():
            if is_alive(pid):
                kill(pid)
        wait_for(lambda: not any(map(is_alive, self.worker_pids())), 5, "their children to be dead")
        for name in os.listdir(self.path("run")):
            shutil.rmtree(self.path("run", name))
        for path in dead_cgroups():
            os.rmdir(path)


class QuietTest(Case):
    def test_idle_workers_cost_no_lease(self):
        run = self.launch("-np", "2", "--heartbeat-timeout", "0.5", "sleep", "3")
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [])


if __name__ == "__main__":
    main()
