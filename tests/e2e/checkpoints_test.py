"""Checkpoints on this machine: resume after the launcher's death, and damaged checkpoints."""

import json
import os
import re
import shutil
import signal
import stat
import time
import unittest

import training
from harness import Case, Trained, committed_steps, kill, main, wait_for


class Interrupted(Case):
    """Each test gets a copy of one job that was interrupted by a kill of its launcher."""

    reference = None
    interrupted = None

    def setUp(self):
        super().setUp()
        if Interrupted.interrupted is None:
            self.make_interrupted()
        self.ckpt = self.path("ckpt")
        shutil.copytree(Interrupted.interrupted, self.ckpt)
        self.steps = committed_steps(self.ckpt)
        self.assertGreaterEqual(len(self.steps), 2)

    def make_interrupted(self):
        Interrupted.reference = Trained(self.launch("-np", "4", *training.program()))
        ckpt = self.path("made")
        run = self.start("-np", "4", "--checkpoint-dir", ckpt, *training.program(step_ms=10), cwd="/")
        training.wait_for_checkpoints(run, ckpt, 3)
        kill(run.launcher)
        run.wait(10)
        self.assert_nothing_left()
        kept = self.dir + "-interrupted"
        unittest.addModuleCleanup(shutil.rmtree, kept, True)
        shutil.move(ckpt, kept)
        Interrupted.interrupted = kept

    def step_folder(self, step):
        return os.path.join(self.ckpt, f"step-{step:09d}")


class ResumeTest(Interrupted):
    def resume(self, *options):
        return self.launch("resume", self.ckpt, *options)

    def assert_resumes_at(self, step, *options):
        run = self.resume(*options)
        trained = training.assert_same_result(self, run, self.reference, redone_at_most=2 * training.EVERY)
        self.assertEqual(trained.resumed_at, step, str(run))
        return run

    def damage(self, change, name="rank-0001.safetensors"):
        """Damages a file of the newest checkpoint; the one before must be used, and the newest named."""
        path = os.path.join(self.step_folder(self.steps[-1]), name)
        with open(path, "r+b") as f:
            change(f)
        run = self.assert_resumes_at(self.steps[-2])
        self.assertRegex(run.err, rf"step-0*{self.steps[-1]}\b|step {self.steps[-1]}\b")
        return run

    def test_resume_needs_no_other_argument(self):
        run = self.assert_resumes_at(self.steps[-1])
        self.assertIn("train_digits", run.err)  # the command is printed first

    def test_resume_with_another_number_of_ranks(self):
        self.assert_resumes_at(self.steps[-1], "-np", "2")

    def test_a_truncated_shard(self):
        def truncate(f):
            f.truncate(os.fstat(f.fileno()).st_size - 1)

        self.assertIn("rank-0001", self.damage(truncate).err)

    def test_a_flipped_bit_in_a_shard(self):
        def flip(f):
            middle = os.fstat(f.fileno()).st_size // 2
            f.seek(middle)
            byte = f.read(1)[0]
            f.seek(middle)
            f.write(bytes([byte ^ 0x10]))

        self.assertIn("rank-0001", self.damage(flip).err)

    def test_an_empty_shard(self):
        self.damage(lambda f: f.truncate(0))

    def test_a_truncated_manifest(self):
        self.damage(lambda f: f.truncate(os.fstat(f.fileno()).st_size // 2), "manifest.json")

    def test_a_changed_manifest(self):
        def change(f):
            text = f.read()
            f.seek(0)
            f.write(text.replace(b"%d" % self.steps[-1], b"%d" % (self.steps[-1] + 1)))

        self.damage(change, "manifest.json")

    def test_a_missing_shard(self):
        self.damage(lambda f: os.unlink(f.name))

    def test_a_missing_manifest(self):
        self.damage(lambda f: os.unlink(f.name), "manifest.json")

    def test_a_save_that_was_not_committed_is_ignored(self):
        shutil.copytree(self.step_folder(self.steps[-1]), os.path.join(self.ckpt, "step-000999999.tmp-1"))
        self.assert_resumes_at(self.steps[-1])

    def test_nothing_whole_is_left(self):
        for step in self.steps:
            os.truncate(os.path.join(self.step_folder(step), "rank-0000.safetensors"), 10)
        self.assert_code(self.resume(), 3)

    def test_the_job_file_is_private(self):
        path = os.path.join(self.ckpt, "job.toml")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        os.chmod(path, 0o666)
        run = self.resume()
        self.assert_code(run, 2)
        self.assertIn("job.toml", run.err)

    def test_a_finished_job_ends_at_once(self):
        self.assert_resumes_at(self.steps[-1])
        run = self.resume()
        self.assert_code(run, 0)
        self.assertEqual(Trained(run).sha256, self.reference.sha256)


class RetentionTest(Case):
    def test_the_newest_three_are_kept(self):
        run = self.launch("-np", "2", "--checkpoint-dir", self.path("ckpt"), *training.program())
        self.assert_code(run, 0)
        self.assertEqual(committed_steps(self.path("ckpt")), [80, 100, 120])

    def test_what_is_not_ours_is_left_alone(self):
        other = self.path("ckpt", "step-000000007")
        os.makedirs(other)
        with open(os.path.join(other, "notes.txt"), "w") as f:
            f.write("mine")
        run = self.launch("-np", "2", "--checkpoint-dir", self.path("ckpt"), *training.program())
        self.assert_code(run, 0)
        self.assertTrue(os.path.exists(os.path.join(other, "notes.txt")))

    def test_k4_nothing_to_resume(self):
        os.mkdir(self.path("empty"))
        for folder in (self.path("empty"), self.path("missing")):
            run = self.launch("resume", folder, timeout=20)
            self.assert_code(run, 3)
            self.assertIn(folder, run.err)


class RescueTest(Case):
    def test_ranks_that_are_left_save_what_they_have(self):
        """No checkpoint but theirs: at most one step is done twice."""
        reference = Trained(self.launch("-np", "4", *training.program(steps=60)))
        run = self.start("-np", "4", "--checkpoint-dir", self.path("ckpt"),
                         *training.program(steps=60, every=1000, step_ms=20), "--save-on-error", "1")
        run.wait_for_text("step 20 loss")
        kill(run.workers()[2].pid)
        run.wait()
        self.assert_code(run, 0)
        trained = Trained(run)
        self.assertEqual(trained.sha256, reference.sha256, str(run))
        self.assertGreaterEqual(trained.resumed_at, 20)
        self.assertLessEqual(trained.redone, 1, str(run))
        self.assertIn("is committed, by the ranks that are left", run.err)
        self.assertIn('"rescued": true', run_manifest(self.path("ckpt"), trained.resumed_at))

    def test_a_stop_in_order_is_no_failure(self):
        run = self.start("-np", "2", "--checkpoint-dir", self.path("ckpt"),
                         *training.program(steps=10000, every=100000, step_ms=20), "--save-on-error", "1")
        run.wait_for_text("step 20 loss")
        kill(run.launcher, signal.SIGTERM)
        self.assert_code(run.wait(20), 143)


def run_manifest(folder, step):
    with open(os.path.join(folder, f"step-{step:09d}", "manifest.json")) as f:
        return f.read()


class ShowTest(Interrupted):
    """hvdlaunch checkpoints DIR says what a resume would do."""

    def show(self, *options, code=0):
        run = self.launch("checkpoints", self.ckpt, "--json", *options, timeout=20)
        self.assert_code(run, code)
        return json.loads(run.out)

    def test_what_is_whole_and_what_would_be_resumed(self):
        newest, before = self.steps[-1], self.steps[-2]
        shown = self.show("--verify")
        self.assertEqual([c["step"] for c in shown["checkpoints"]], self.steps[::-1])
        self.assertTrue(all(c["whole"] and c["ranks"] == 4 for c in shown["checkpoints"]))
        self.assertEqual(shown["resume"], {"step": newest, "path": self.step_folder(newest)})
        shard = os.path.join(self.step_folder(newest), "rank-0001.safetensors")
        with open(shard, "r+b") as f:
            f.seek(-1, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_END)
            f.write(bytes([byte ^ 1]))
        self.assertEqual(self.show()["resume"]["step"], newest)  # by its lengths
        shown = self.show("--verify", code=1)
        self.assertEqual(shown["resume"]["step"], before)
        self.assertIn(shard, shown["checkpoints"][0]["why_not"])
        os.truncate(shard, 10)
        self.assertEqual(self.show()["resume"]["step"], before)
        run = self.launch("checkpoints", self.ckpt)
        self.assertIn(f"resume would go on from step {before}, {self.step_folder(before)}\n", run.out)

    def test_nothing_would_be_resumed(self):
        for step in self.steps:
            os.unlink(os.path.join(self.step_folder(step), "manifest.json"))
        self.assertIsNone(self.show(code=3)["resume"])
        self.assert_code(self.launch("checkpoints", self.path("none")), 2)

    def test_k3_the_programs_own_are_known_and_resumed(self):
        for step in self.steps:
            shutil.rmtree(self.step_folder(step))
        for step, whole in ((5, True), (40, True), (100, False)):
            os.mkdir(self.path("ckpt", f"step_{step}"))
            for name in ["__0_0.distcp"] + [".metadata"] * whole:
                with open(self.path("ckpt", f"step_{step}", name), "w") as f:
                    f.write("__0_0.distcp")
        shown = self.show()
        self.assertEqual([(c["step"], c["complete"]) for c in shown["foreign"]], [(100, False), (40, True), (5, True)])
        self.assertEqual(shown["resume"], {"step": 40, "path": self.path("ckpt", "step_40")})
        run = self.launch("resume", self.ckpt, "-np", "1", "--no-prefix", "--", "sh", "-c",
                          "echo $HVD_RESUME_FROM $HVD_RESUME_STEP")
        self.assert_code(run, 0)
        self.assertEqual(run.out, f"{self.path('ckpt', 'step_40')} 40\n", str(run))
        self.assertIn("the PyTorch DCP checkpoint step_100 is not complete: on localhost .metadata is missing", run.err)

    def test_pruning_leaves_the_newest(self):
        shutil.copytree(self.step_folder(self.steps[-1]), self.step_folder(999999999) + ".tmp-1")
        os.mkdir(self.step_folder(3))
        os.mkdir(self.path("ckpt", "mine"))
        with open(self.path("ckpt", "job.toml"), "r+") as f:
            text = f.read()
            f.seek(0)
            f.write(re.sub(r"(checkpoint.keep = )\d+", r"\g<1>2", text))
        run = self.launch("checkpoints", self.ckpt, "--prune")
        self.assert_code(run, 0)
        self.assertEqual(committed_steps(self.ckpt), self.steps[-2:], str(run))
        self.assertEqual(sorted(n for n in os.listdir(self.ckpt) if not n.startswith("step-")), ["job.toml", "mine"])
        self.assertTrue(os.path.isdir(self.step_folder(3)))
        self.assertFalse(os.path.exists(self.step_folder(999999999) + ".tmp-1"))

    def test_words_that_make_no_sense(self):
        for words in (("--verfy", self.ckpt), (), (self.ckpt, self.ckpt), ("h1:/ckpt",)):
            run = self.launch("checkpoints", *words)
            self.assert_code(run, 2)
            self.assertNotEqual(run.err, "")


class LockTest(Case):
    """One job at a time has a checkpoint folder to itself."""

    def setUp(self):
        super().setUp()
        self.ckpt = self.path("ckpt")
        self.lock = self.path("ckpt", ".hvdlaunch.lock")

    def holder(self):
        run = self.start("-np", "1", "--checkpoint-dir", self.ckpt, "sleep", "1000")
        run.wait_for_workers(1)
        return run

    def assert_refused(self, run):
        self.assert_code(run, 2)
        with open(self.lock) as f:
            holder = dict(line.rstrip("\n").split("=", 1) for line in f)
        self.assertIn(f"{self.ckpt} is in use by job {holder['job']} (attempt 1 on localhost, started on "
                      f"{os.uname().nodename}) since {holder['since']}", run.err)

    def test_n34_a_second_job_is_refused_while_the_first_lives(self):
        first = self.holder()
        self.assert_refused(self.launch("-np", "1", "--checkpoint-dir", self.ckpt, "true"))
        self.assert_refused(self.launch("resume", self.ckpt))
        self.assertTrue(first.running)
        kill(first.launcher, signal.SIGTERM)
        first.wait()
        self.assertFalse(os.path.exists(self.lock))
        self.assert_code(self.launch("-np", "1", "--checkpoint-dir", self.ckpt, "true"), 0)
        self.assertFalse(os.path.exists(self.lock))

    def test_n34_a_job_whose_processes_are_gone_holds_nothing(self):
        first = self.holder()
        # Nobody is left who could put the lock away.
        keeper, agent = first.agents()[0]
        for pid in (first.launcher, keeper.pid):
            kill(pid, signal.SIGSTOP)
        for pid in (agent.pid, keeper.pid, first.launcher):
            kill(pid)
        wait_for(lambda: not first.workers(), 10, "the rank to be gone")
        self.assertTrue(os.path.exists(self.lock))
        started = time.monotonic()
        # So long that what is left of the first is swept.
        run = self.launch("-np", "1", "--heartbeat-timeout", "0.5", "--checkpoint-dir", self.ckpt, "sleep", "0.5")
        self.assert_code(run, 0)
        self.assert_within(started, 3)

    def test_n34_a_relaunch_keeps_the_lock(self):
        run = self.holder()
        for _, agent in run.agents():
            kill(agent.pid)
        run.wait_for_text("attempt 2")
        run.wait_for_workers(1)
        with open(self.lock) as f:
            self.assertIn("attempt=2\n", f.read())
        kill(run.launcher, signal.SIGTERM)
        run.wait()

    def test_n34_a_lock_of_another_machine_is_waited_for(self):
        os.mkdir(self.ckpt)
        with open(self.lock, "w") as f:
            f.write("job=far\nattempt=3\nhost=h9\nlauncher=login1\nlease_ns=1000000000\nboot_id=x\nsince=noon\n")
        run = self.launch("-np", "1", "--checkpoint-dir", self.ckpt, "true")
        self.assert_code(run, 0)
        self.assertIn(f"{self.ckpt} is in use by job far (attempt 3 on h9, started on login1) since noon; waiting up "
                      "to 1 s to see whether it still lives", run.err)


if __name__ == "__main__":
    main()
