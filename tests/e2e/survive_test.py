"""Jobs that survive their launcher (--survive), on this machine: watched again by `attach` and by
`resume`, by one launcher at a time, and gone when their time without one is over."""

import glob
import json
import os
import random
import re
import shutil
import signal
import time

import training
from harness import PROGRAMS, PYTHON, Case, Trained, is_alive, kill, main, wait_for

COUNTER = [PYTHON, f"{PROGRAMS}/counter.py"]


class SurviveCase(Case):
    def launch_surviving(self, *args, survive="60", env=None):
        return self.start("--survive", survive, "--heartbeat-timeout", "1", "--failure-grace", "0.3",
                          "--no-prefix", *args, env=env)

    def state(self, pattern):
        return glob.glob(self.path("home/state/hvdlaunch/jobs", pattern))

    def kill_launcher(self, run):
        kill(run.launcher)
        wait_for(lambda: not run.running, 10, "the launcher to be dead")

    def assert_whole(self, runs, ranks, lines, once=True):
        """Each line of each rank was shown, and once: by one launcher or another, or, if not `once`,
        again by the next where a kill found it being written."""
        whole = re.compile(r"^(\d+:\d+) of \d+$", re.M)
        shown = [whole.findall(run.out) for run in runs]
        for run, part in zip(runs, shown):
            self.assertEqual(len(part), len(set(part)))
            self.assertLessEqual(run.out.count("\n"), len(part) + 1)  # a line may be torn once
        self.assertEqual(set().union(*shown), {f"{rank}:{i}" for rank in range(ranks) for i in range(lines)})
        again = sum(map(len, shown)) - ranks * lines
        self.assertLessEqual(again, 0 if once else 20000 * (len(runs) - 1))

    def assert_no_journal(self):
        self.assertEqual([os.path.basename(p) for p in self.state("*/*")
                          if os.path.basename(p) in ("journal.json", "shown", "watcher")], [])


class AttachTest(SurviveCase):
    def test_a_killed_launcher_is_no_matter_to_the_ranks(self):
        runs = [self.launch_surviving("-np", "2", *COUNTER, "250", "0.01", "7")]
        before = {rank: p.pid for rank, p in runs[0].wait_for_workers(2).items()}
        for _ in range(3):
            runs[-1].wait_for_text(r"0:\d+5 of")
            self.kill_launcher(runs[-1])
            self.assertTrue(all(is_alive(pid) for pid in before.values()))
            runs.append(self.start("attach"))
            runs[-1].wait_for_text("attempt 1 of job .* goes on, with all its ranks")
        self.assertEqual({rank: p.pid for rank, p in runs[0].workers().items()}, before)
        self.assert_code(runs[-1].wait(30), 7)
        self.assertRegex(runs[-1].err, r"rank 0 on \S+ ended with exit code 7")
        self.assert_whole(runs, 2, 250)
        for pid in before.values():
            self.assertIn(f"of {pid}", runs[-1].out)
        # One history, from the first launcher to the last.
        with open(self.state("*/events.jsonl")[0]) as f:
            events = [json.loads(line) for line in f]
        self.assertEqual(sum(e["what"] == "begin" for e in events), 4)
        self.assertEqual(sum(e.get("message") == "start-attempt" for e in events), 1)
        self.assertEqual(len(self.state("*/report.json")), 1)
        self.assert_no_journal()
        self.assert_code(self.launch("attach"), 2)

    def test_much_output_is_neither_lost_nor_shown_twice(self):
        lines = 150000
        logs = self.path("logs")
        runs = [self.launch_surviving("-np", "2", "--log-dir", logs, *COUNTER, str(lines), "0")]
        for _ in range(4):
            wait_for(lambda: runs[-1].out or not runs[-1].running, 20, lambda: f"output\n{runs[-1]}")
            time.sleep(random.uniform(0, 0.05))
            if not runs[-1].running:
                break
            self.kill_launcher(runs[-1])
            runs.append(self.start("attach"))
        self.assertGreater(len(runs), 1)
        self.assert_code(runs[-1].wait(60), 0)
        self.assert_whole(runs, 2, lines, once=False)
        for rank in range(2):
            with open(glob.glob(f"{logs}/attempt-1/rank-{rank}@*.out")[0]) as f:
                self.assertEqual([line.split(" ")[0] for line in f], [f"{rank}:{i}" for i in range(lines)])

    def test_hosts_that_came_later_are_known_to_the_next_launcher(self):
        hosts = self.write("hosts", "a\nb\n")
        run = self.launch_surviving("-np", "2", "--transport", "local", "--host-discovery-script", f"cat {hosts}",
                                    "--checkpoint-dir", self.path("ckpt"), *training.program(steps=440, step_ms=20))
        training.wait_for_checkpoints(run, self.path("ckpt"), 1)
        self.write("hosts", "c\na\n")
        run.wait_for_text("the spare c takes the ranks of b", 60)
        run.wait_for_text("attempt 2 goes on")
        run.wait_for_workers(2)
        self.kill_launcher(run)
        # Nor is the script asked who holds the ranks.
        os.remove(hosts)
        after = self.start("attach")
        after.wait_for_text("attempt 2 of job .* goes on, with all its ranks")
        kill(run.workers()[1].pid)
        after.wait_for_text("rank 1 on c was killed by SIGKILL")
        self.write("hosts", "c\na\n")
        self.assert_code(after.wait(60), 0)

    def test_what_ended_while_nobody_was_there_is_told(self):
        go = self.path("go")
        run = self.launch_surviving("-np", "2", *COUNTER, "50", "0", "7", env={"GO": go})
        run.wait_for_workers(2)
        self.kill_launcher(run)
        self.write("go", "")
        wait_for(lambda: not run.workers(), 10, "the ranks to end")
        after = self.launch("attach", timeout=30)
        self.assert_code(after, 7)
        self.assert_whole([run, after], 2, 50)

    def test_without_a_launcher_for_its_time_nothing_is_left(self):
        script = "trap '' TERM; (setsid sleep 1000 &); while :; do sleep 0.1; done"
        run = self.launch_surviving("-np", "2", "sh", "-c", script, survive="1.5")
        run.wait_for_workers(2)
        began = time.monotonic()
        self.kill_launcher(run)
        time.sleep(1)
        self.assertEqual(len(run.workers()), 2)
        wait_for(lambda: not run.command.processes(), 10, "all to be gone")
        self.assertGreater(time.monotonic() - began, 1.7)
        after = self.launch("attach", timeout=20)
        self.assert_code(after, 3)
        self.assertIn("runs any more", after.err)
        self.assert_no_journal()

    def test_g4_without_survive_the_ranks_end_with_the_launcher(self):
        run = self.start("-np", "2", "sleep", "1000")
        run.wait_for_workers(2)
        self.kill_launcher(run)
        wait_for(lambda: not run.command.processes(), 10, "all to be gone")
        self.assert_code(self.launch("attach"), 2)

    def test_one_launcher_at_a_time(self):
        first = self.launch_surviving("-np", "1", "sleep", "1000")
        first.wait_for_workers(1)
        job = os.path.basename(os.path.dirname(wait_for(lambda: self.state("*/journal.json"), 10, "a journal")[0]))
        for words in (("attach",), ("attach", job)):
            other = self.launch(*words, timeout=10)
            self.assert_code(other, 2)
            self.assertRegex(other.err, rf"^hvdlaunch: job {job} is watched by process {first.launcher} on \S+\n$")
        # One that stands still is not heard by the agents, and gives way.
        kill(first.launcher, signal.SIGSTOP)
        second = wait_for(self.attached, 20, "the agents to let another launcher in")
        third = self.launch("attach", timeout=10)
        self.assert_code(third, 2)
        self.assertIn(f"is watched by process {second.launcher} on", third.err)
        kill(first.launcher, signal.SIGCONT)
        self.assert_code(first.wait(20), 125)
        self.assertIn(f"is watched by process {second.launcher} on", first.err)
        self.assertTrue(second.running)
        self.assertEqual(len(first.workers()), 1)
        kill(second.launcher, signal.SIGTERM)
        self.assert_code(second.wait(20), 143)

    def attached(self):
        run = self.start("attach")
        wait_for(lambda: "goes on" in run.err or not run.running, 20, lambda: f"attach\n{run}")
        return run if run.running else None

    def test_two_launchers_at_once_are_one(self):
        run = self.launch_surviving("-np", "1", "sleep", "1000")
        run.wait_for_workers(1)
        self.kill_launcher(run)
        both = [self.start("attach") for _ in range(2)]
        wait_for(lambda: not all(r.running for r in both), 20, "one of them to give up")
        lost, won = sorted(both, key=lambda r: r.running)
        self.assert_code(lost, 2)
        self.assertRegex(lost.err, r"^hvdlaunch: job \S+ is watched by process \d+ on \S+\n$")
        won.wait_for_text("goes on, with all its ranks")
        kill(won.launcher, signal.SIGINT)
        self.assert_code(won.wait(20), 130)

    def test_g5_a_terminal_that_closes_leaves_the_job(self):
        run = self.launch_surviving("-np", "2", *COUNTER, "150", "0.01")
        run.wait_for_workers(2)
        kill(run.launcher, signal.SIGHUP)
        self.assert_code(run.wait(10), 129)
        job = re.search(r"`hvdlaunch attach (\S+)` watches it again", run.err)[1]
        after = self.launch("attach", job, timeout=30)
        self.assert_code(after, 0)
        self.assert_whole([run, after], 2, 150)

    def test_a_stop_that_was_asked_for_is_a_stop_for_the_next_launcher(self):
        script = "trap 'while ! [ -e go ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done"
        run = self.launch_surviving("-np", "2", "sh", "-c", script)
        run.wait_for_workers(2)
        time.sleep(0.2)
        kill(run.launcher, signal.SIGINT)
        run.wait_for_text("stopping all ranks")
        time.sleep(0.2)
        self.kill_launcher(run)
        after = self.start("attach")
        time.sleep(0.2)
        self.write("go", "")
        self.assert_code(after.wait(20), 130)


class TrainingTest(SurviveCase):
    """A job with checkpoints, on two hosts that are this machine."""

    _reference = None

    def reference(self):
        if TrainingTest._reference is None:
            run = self.launch("-np", "2", *training.program())
            self.assert_code(run, 0)
            TrainingTest._reference = Trained(run)
        return TrainingTest._reference

    def train(self):
        hosts = self.write("hosts.toml", "".join(f'[[host]]\nname = "n{i}"\nslots = 1\n' for i in (1, 2)))
        return self.start("-H", hosts, "--transport", "local", "--survive", "60", "--heartbeat-timeout", "1",
                          "--failure-grace", "0.3", "--checkpoint-dir", self.path("ckpt"),
                          *training.program(step_ms=8))

    def assert_trained(self, runs):
        result = [Trained(run) for run in runs if "sha256=" in run.out]
        self.assertEqual(len(result), 1, runs)
        self.assertEqual(result[0].sha256, self.reference().sha256)

    def test_resume_of_the_same_folder_watches_the_job_that_lives(self):
        runs = [self.train()]
        before = {rank: p.pid for rank, p in runs[0].wait_for_workers(2).items()}
        for count in (1, 3):
            training.wait_for_checkpoints(runs[-1], self.path("ckpt"), count)
            self.kill_launcher(runs[-1])
            runs.append(self.start("resume", self.path("ckpt")))
            runs[-1].wait_for_text("attempt 1 of job .* goes on, with all its ranks")
            self.assertEqual({rank: p.pid for rank, p in runs[0].workers().items()}, before)
        other = self.launch("resume", self.path("ckpt"), timeout=10)
        self.assert_code(other, 2)
        self.assertIn("is watched by process", other.err)
        self.assert_code(runs[-1].wait(60), 0)
        self.assert_trained(runs)
        self.assertNotIn("attempt 2", runs[-1].err)

    def test_resume_where_nothing_is_left_starts_again(self):
        run = self.train()
        training.wait_for_checkpoints(run, self.path("ckpt"))
        for _, agent in run.agents():
            kill(agent.pid)
        self.kill_launcher(run)
        wait_for(lambda: not run.command.processes(), 10, "all to be gone")
        after = self.launch("resume", self.path("ckpt"), timeout=60)
        training.assert_same_result(self, after, self.reference())
        self.assertNotIn("runs any more", after.err)

    def test_an_agent_that_died_alone_is_a_host_that_is_lost(self):
        run = self.train()
        training.wait_for_checkpoints(run, self.path("ckpt"))
        self.kill_launcher(run)
        kill(run.agents()[1][1].pid)
        after = self.launch("attach", timeout=60)
        self.assert_code(after, 0)
        self.assert_trained([after])
        self.assertIn("attempt 2", after.err)

    def test_n40_a_launcher_that_dies_while_it_starts_or_stops_ranks(self):
        for delay in (0, 0.004, 0.02, 0.06, 0.15):
            with self.subTest(delay):
                run = self.train()
                training.wait_for_checkpoints(run, self.path("ckpt"), 1)
                kill(run.workers()[1].pid)
                time.sleep(delay)
                self.kill_launcher(run)
                after = self.start("attach")
                while after.running:
                    ranks = [p.environment().get("HVD_RANK") for p in run.command.processes()]
                    ranks += [p.environment().get("HVD_RANK") for p in after.command.processes()]
                    ranks = [r for r in ranks if r is not None]
                    self.assertLessEqual(len(ranks), 2, "two copies of a rank")
                    time.sleep(0.02)
                self.assert_code(after, 0)
                self.assert_trained([after])
                shutil.rmtree(self.path("ckpt"))


if __name__ == "__main__":
    main()
