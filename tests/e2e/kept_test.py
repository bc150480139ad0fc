"""States in the agents' memory: a lost process costs at most a step and no disk is read; what was
written over is found out; a lost agent takes its memory along; nothing is left and nothing grows."""

import os
import re
import time

import training
from harness import TRAIN, Case, Trained, kill, main, wait_for


class KeptTest(Case):
    reference = None

    def setUp(self):
        super().setUp()
        if KeptTest.reference is None:
            KeptTest.reference = Trained(self.launch("-np", "4", *training.program()))

    def train(self, every=0, step_ms=20):
        """A job that keeps each step, and saves on disk or never."""
        return self.start("-np", "4", "--checkpoint-dir", self.path("ckpt"), TRAIN, "--steps", str(training.STEPS),
                          "--checkpoint-every", str(every), "--keep-every", "1", "--step-ms", str(step_ms))

    def wait_for_step(self, run, step):
        wait_for(lambda: any(int(s) >= step for s in re.findall(r"step (\d+) loss", run.out)), 30,
                 lambda: f"step {step}\n{run}")

    def memories(self, pid):
        """The descriptors of kept states that a process holds."""
        folder = f"/proc/{pid}/fd"
        paths = [f"{folder}/{name}" for name in os.listdir(folder)]
        return [p for p in paths if os.path.islink(p) and "memfd:hvd-kept" in os.readlink(p)]

    def assert_same_result(self, run):
        self.assert_code(run, 0)
        trained = Trained(run)
        self.assertEqual(trained.sha256, self.reference.sha256, str(run))
        return trained

    def test_a_killed_rank_costs_a_step_at_most_and_no_disk_is_read(self):
        """There is nothing on disk that could be. Again and again, at any rank."""
        run = self.train()
        agent = None
        for number, step in enumerate((20, 40, 60, 80)):
            self.wait_for_step(run, step)
            kill(run.workers()[number % 4].pid)
            wait_for(lambda n=number: f"attempt {n + 2} goes on from step" in run.err, 20, lambda: f"it to go on\n{run}")
            agent = agent or run.agents()[0][1].pid
            self.assertLessEqual(len(self.memories(agent)), 8)
        trained = self.assert_same_result(run.wait())
        self.assertLessEqual(trained.redone, 1, str(run))
        froms = [int(s) for s in re.findall(r"goes on from step (\d+), which the agents have in memory", run.err)]
        self.assertEqual(len(froms), 4, str(run))
        redone = [int(s or 0) for s in re.findall(r"then from step \d+ in memory(?:; (\d+) steps? to redo)?", run.err)]
        self.assertEqual(len(redone), 4, str(run))
        self.assertLessEqual(max(redone), 1, str(run))
        self.assertFalse([n for n in os.listdir(self.path("ckpt")) if n.startswith("step-")])

    def test_what_a_rank_wrote_over_is_found_out_and_the_disk_is_used(self):
        run = self.train(every=20)
        self.wait_for_step(run, 60)
        worker = run.workers()[2].pid
        agent = run.agents()[0][1].pid
        kill(worker, 19)  # it stands still

        def at_rest():
            held = self.memories(agent)
            time.sleep(0.1)
            return len(held) == 8 and held == self.memories(agent) and held

        # The others are done with the step, and wait for it.
        for path in wait_for(at_rest, 10, "two copies of each rank"):
            with open(path, "r+b") as f:
                f.seek(os.fstat(f.fileno()).st_size - 100)
                f.write(b"x")
        kill(worker)
        trained = self.assert_same_result(run.wait())
        self.assertRegex(run.err, r"the state of step \d+ in memory cannot be used: rank \d .*does not match its checksum")
        self.assertEqual(trained.resumed_at % 20, 0, str(run))

    def test_ranks_keep_on_while_the_launcher_changes(self):
        """What was told to one launcher and not answered is told to the next."""
        run = self.start("--survive", "60", "-np", "4", "--checkpoint-dir", self.path("ckpt"), TRAIN, "--steps",
                         str(training.STEPS), "--checkpoint-every", "0", "--keep-every", "1", "--step-ms", "20")
        self.wait_for_step(run, 20)
        worker = run.workers()[3].pid
        kill(run.launcher)
        wait_for(lambda: not run.running, 10, "the launcher to be dead")
        run = self.start("attach")
        run.wait_for_text("attempt 1 of job .* goes on, with all its ranks")
        self.wait_for_step(run, 60)
        kill(worker)
        self.assertLessEqual(self.assert_same_result(run.wait()).redone, 1, str(run))
        self.assertRegex(run.err, r"attempt 2 goes on from step \d+, which the agents have in memory")

    def test_a_lost_agent_takes_its_memory_along(self):
        run = self.train(every=20)
        self.wait_for_step(run, 60)
        kill(run.agents()[0][1].pid)
        trained = self.assert_same_result(run.wait())
        self.assertEqual(trained.resumed_at % 20, 0, str(run))
        self.assertGreater(trained.resumed_at, 0, str(run))
        self.assertNotIn("goes on from step %d, which" % trained.resumed_at, run.err)


if __name__ == "__main__":
    main()
