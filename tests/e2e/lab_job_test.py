"""The main job on real hosts: 4 hosts, 16 ranks, and a spare; whatever is done to ranks, agents,
hosts and links, the job ends with the weights of the undisturbed run."""

import os
import re
import shutil
import signal
import time
import unittest

import training
from harness import LabCase, Trained, committed_steps, is_alive, kill, main, needs_lab, wait_for

HOSTS = ["h1", "h2", "h3", "h4"]


@needs_lab
class JobTest(LabCase):
    hosts = 5  # the last is the spare
    reference = None

    def train(self, *options, ckpt="/srv/lab/ckpt", spares=("h5",), step_ms=20):
        return self.start("-np", "16", "-H", self.host_file(HOSTS, 4, spares), "--heartbeat-timeout", "2",
                          "--checkpoint-dir", ckpt, *options, *training.program(step_ms=step_ms))

    def setUp(self):
        super().setUp()
        self.ckpt = f"{self.lab.shared}/ckpt"
        if JobTest.reference is None:
            run = self.train(step_ms=0).wait()
            self.assert_code(run, 0)
            JobTest.reference = Trained(run)
            self.assertGreaterEqual(JobTest.reference.accuracy, 0.95)
            self.assertEqual(JobTest.reference.resumed_at, 0)
            shutil.rmtree(self.ckpt)

    def half_way(self, run, folder=None):
        training.wait_for_checkpoints(run, folder or self.ckpt)

    def assert_same(self, run, **options):
        return training.assert_same_result(self, run.wait(), self.reference, **options)

    def workers_on(self, host):
        return [p.pid for p in self.lab.processes(host) if "HVD_RANK" in p.environment()]

    def later_attempt_runs(self):
        return any(p.environment().get("HVD_ATTEMPT", "1") != "1"
                   for h in self.lab.hosts for p in self.lab.processes(h))

    def test_states_in_memory_of_several_hosts(self):
        """A killed rank costs a step at most; a host takes its states along, and the disk is used."""
        run = self.start("-np", "16", "-H", self.host_file(HOSTS, 4, ("h5",)), "--heartbeat-timeout", "2",
                         "--checkpoint-dir", "/srv/lab/ckpt", *training.program(step_ms=20), "--keep-every", "1")
        self.half_way(run)
        kill(run.workers()[9].pid)
        run.wait_for_text(r"attempt 2 goes on from step \d+, which the agents have in memory")
        wait_for(lambda: self.later_attempt_runs(), 20, lambda: f"the next attempt\n{run}")
        run.wait_for_workers(16)
        self.lab("kill", "h2")
        run.wait_for_text(r"attempt 3 goes on from step \d+\n")
        self.assert_same(run, redone_at_most=3 * training.EVERY)
        steps = re.search(r"then from step \d+ in memory(?:; (\d+) steps? to redo)?", run.err)
        self.assertLessEqual(int(steps[1] or 0), 1, str(run))

    def test_no_fault(self):
        self.assert_same(self.train(), disturbed=False)

    def test_kill_of_a_rank(self):
        for rank in (0, 7):
            with self.subTest(rank=rank):
                run = self.train()
                self.half_way(run)
                kill(run.workers()[rank].pid)
                self.assert_same(run)
                self.assert_nothing_left()
                shutil.rmtree(self.ckpt)

    def test_kill_of_an_agent(self):
        run = self.train()
        self.half_way(run)
        kill(run.agents("h3")[0][1].pid)
        self.assert_same(run)
        self.assertIn("h3", run.err)

    def test_power_off_of_a_host_with_a_spare(self):
        run = self.train()
        self.half_way(run)
        self.lab("kill", "h2")
        self.assert_same(run)
        self.assertRegex(run.err, "h5.*h2|h2.*h5")

    def test_power_off_of_the_host_of_rank_0(self):
        run = self.train()
        self.half_way(run)
        self.lab("kill", "h1")
        self.assert_same(run)

    def test_cut_of_a_host_with_a_spare(self):
        run = self.train()
        self.half_way(run)
        old = self.workers_on("h4")
        self.lab("cut", "h4")
        self.addCleanup(self.lab, "heal", "h4")
        wait_for(self.later_attempt_runs, 30, lambda: f"the next attempt\n{run}")
        self.assertEqual([p for p in old if is_alive(p)], [], "ranks run twice")
        self.assert_same(run)
        self.assertRegex(run.err, "h5.*h4|h4.*h5")
        # The cut host cleaned up by itself, without a word from the launcher.
        wait_for(lambda: not self.lab.processes("h4") or all(
            p.name == "sshd" for p in self.lab.processes("h4")), 10, "h4 to be clean")
        for p in self.lab.processes("h4"):  # sshd waits for a connection that never ends
            kill(p.pid)

    def test_kill_of_the_launcher_and_resume(self):
        run = self.train()
        self.half_way(run)
        kill(run.launcher)
        run.wait(20)
        self.assert_nothing_left()
        newest = committed_steps(self.ckpt)[-1]
        trained = self.assert_same(self.start("resume", "/srv/lab/ckpt"))
        self.assertEqual(trained.resumed_at, newest)

    def test_a_stopped_agent(self):
        run = self.train()
        self.half_way(run)
        old = self.workers_on("h2")
        self.assertEqual(len(old), 4)
        kill(run.agents("h2")[0][1].pid, signal.SIGSTOP)
        wait_for(self.later_attempt_runs, 30, lambda: f"the next attempt\n{run}")
        self.assertEqual([p for p in old if is_alive(p)], [], "ranks run twice")
        self.assert_same(run)

    def test_a_stopped_keeper_with_a_killed_agent(self):
        run = self.train()
        self.half_way(run)
        old = self.workers_on("h2")
        keeper, agent = run.agents("h2")[0]
        kill(keeper.pid, signal.SIGSTOP)
        kill(agent.pid)
        wait_for(self.later_attempt_runs, 30, lambda: f"the next attempt\n{run}")
        self.assertEqual([p for p in old if is_alive(p)], [], "ranks run twice")
        self.assert_same(run)

    def test_checkpoints_not_visible_where_it_was_typed(self):
        folder = f"{self.lab.state}/nodes/ckpt"
        run = self.train(ckpt="/srv/nodes/ckpt")
        self.addCleanup(shutil.rmtree, folder)
        self.half_way(run, folder)
        kill(run.workers()[5].pid)
        self.assert_same(run)
        self.assertFalse(os.path.exists(f"{self.lab.state}/hosts/head/root/ckpt"))

    def test_checkpoints_private_to_each_host(self):
        folder = f"{self.lab.state}/hosts/h2/root/ckpt"
        run = self.train(ckpt="/root/ckpt", spares=())
        for host in HOSTS:
            self.addCleanup(shutil.rmtree, f"{self.lab.state}/hosts/{host}/root/ckpt")
        self.half_way(run, folder)
        kill(run.workers()[9].pid)
        self.assert_same(run)

    def interrupt(self, folder, **where):
        """A job whose launcher is killed half way; its newest checkpoint."""
        run = self.train(**where)
        self.half_way(run, folder)
        kill(run.launcher)
        run.wait(20)
        self.assert_nothing_left()
        return committed_steps(folder)[-1]

    def test_resume_of_a_folder_that_is_on_the_hosts_only(self):
        folder = f"{self.lab.state}/nodes/ckpt"
        self.addCleanup(shutil.rmtree, folder)
        newest = self.interrupt(folder, ckpt="/srv/nodes/ckpt")
        shutil.rmtree(f"{self.lab.state}/hosts/head/root/.local/state/hvdlaunch/resume")
        self.assert_code(self.start("resume", "/srv/nodes/ckpt").wait(20), 3)
        trained = self.assert_same(self.start("resume", "h2:/srv/nodes/ckpt"))
        self.assertEqual(trained.resumed_at, newest)

    def test_resume_of_a_job_that_ran_where_it_was_launched(self):
        """And each way in which the host that is asked cannot help."""
        folder = f"{self.lab.state}/hosts/h2/root/ckpt"
        job = f"{folder}/job.toml"
        self.addCleanup(shutil.rmtree, folder)
        run = self.start("-np", "4", "--checkpoint-dir", "/root/ckpt", *training.program(step_ms=20), host="h2")
        self.half_way(run, folder)
        kill(run.launcher)
        run.wait(20)

        def refused(code, sentence, *words):
            run = self.start("resume", *words).wait(20)
            self.assert_code(run, code)
            self.assertRegex(run.err, sentence)
            self.assertEqual(len(run.err.splitlines()), 1, run.err)

        refused(3, r"nothing to resume: there is no h2:/nowhere/job\.toml$", "h2:/nowhere")
        os.chmod(job, 0o666)
        refused(2, r"h2: cannot read /root/ckpt/job\.toml: others can write it$", "h2:/root/ckpt")
        os.chmod(job, 0o600)
        text = self.replace(job, "np = what\n")
        refused(2, r"h2:/root/ckpt/job\.toml:1:\d+: ", "h2:/root/ckpt")
        with open(job, "w") as f:
            f.write(text)
        refused(69, "no-such-host", "no-such-host:/root/ckpt", "--start-timeout", "2")
        self.lab("kill", "h3")
        refused(69, "h3", "h3:/root/ckpt", "--start-timeout", "2")
        newest = committed_steps(folder)[-1]
        trained = self.assert_same(self.start("resume", "h2:/root/ckpt"))
        self.assertEqual(trained.resumed_at, newest)

    def test_interrupt(self):
        run = self.train()
        self.half_way(run)
        kill(run.launcher, signal.SIGINT)
        started = time.monotonic()
        self.assertIn(run.wait(40).code, (130, 75), str(run))  # 75: a save was just being committed
        self.assert_within(started, 35)


if __name__ == "__main__":
    main()
