"""Relaunch on this machine: from the newest checkpoint, with the same result; budgets and loops."""

import glob
import os
import re
import signal
import subprocess
import unittest

import training
from harness import PROGRAMS, PYTHON, TREE, Case, Trained, kill, lines_of, main, wait_for


class DigitsTest(Case):
    @classmethod
    def setUpClass(cls):
        cls._reference = None

    def reference(self):
        """The undisturbed result; made once."""
        if DigitsTest._reference is None:
            run = self.launch("-np", "4", *training.program())
            self.assert_code(run, 0)
            DigitsTest._reference = Trained(run)
        return DigitsTest._reference

    def slow(self, *options, size=4, step_ms=10, env=None):
        return self.start("-np", str(size), "--checkpoint-dir", self.path("ckpt"), *options,
                          *training.program(step_ms=step_ms), env=env)

    def test_undisturbed_is_accurate(self):
        self.assertGreaterEqual(self.reference().accuracy, 0.95)

    def test_the_number_of_ranks_does_not_change_the_result(self):
        for size in (1, 2, 8):
            run = self.launch("-np", str(size), *training.program())
            self.assertEqual(Trained(run).sha256, self.reference().sha256, f"{size} ranks")

    def kill_rank(self, rank):
        run = self.slow()
        training.wait_for_checkpoints(run, self.path("ckpt"))
        kill(run.workers()[rank].pid)
        training.assert_same_result(self, run.wait(), self.reference())
        self.assertRegex(run.err, rf"rank {rank} .*SIGKILL")

    def test_kill_of_rank_0(self):
        self.kill_rank(0)

    def test_kill_of_another_rank(self):
        self.kill_rank(3)

    def test_segmentation_fault_of_a_rank(self):
        # To AddressSanitizer one that was sent is a finding as any other.
        run = self.slow(env={"ASAN_OPTIONS": "handle_segv=0"})
        training.wait_for_checkpoints(run, self.path("ckpt"))
        kill(run.workers()[2].pid, signal.SIGSEGV)
        training.assert_same_result(self, run.wait(), self.reference())

    def test_h6_a_stopped_rank_is_named_killed_and_started_again(self):
        run = self.slow("--stall-timeout", "0.5", "--stall-action", "restart")
        training.wait_for_checkpoints(run, self.path("ckpt"))
        kill(run.workers()[2].pid, signal.SIGSTOP)
        training.assert_same_result(self, run.wait(), self.reference())
        self.assertRegex(run.err, r"no progress for 0\.\d+ s: rank 2 on \S+ is stopped \(state T\)")
        self.assertRegex(self.kept_stacks(run), r"rank 2 on .*\n.*train_digits.*\n  thread .*: state T")

    def kept_stacks(self, run):
        path = re.search(r"where the ranks wait is in (\S+)", run.err)[1]
        with open(path) as f:
            return f.read()

    def test_a_stalled_rank_s_call_stack_is_kept_before_it_is_killed(self):
        # A quarter of the limit is time enough for a debugger.
        run = self.slow("--stall-timeout", "5", "--stall-action", "restart")
        training.wait_for_checkpoints(run, self.path("ckpt"), 1)
        kill(run.workers()[3].pid, signal.SIGSTOP)
        training.assert_same_result(self, run.wait(), self.reference())
        self.assertRegex(self.kept_stacks(run), r"(?s)rank 0 on .*#\d.*hvd.*rank 3 on ")

    def test_stacks_of_a_running_job_are_shown(self):
        run = self.slow(step_ms=50)
        run.wait_for_workers(4)
        self.wait_for_log(run)
        job = os.path.basename(glob.glob(self.path("home/state/hvdlaunch/jobs/*"))[0])
        for words in (["stacks", job], ["stacks", "no-such-job"]):
            shown = self.launch(*words)
            if words[1] != job:
                self.assert_code(shown, 2)
                self.assertIn("there is no job no-such-job whose launcher runs on this machine", shown.err)
                continue
            self.assert_code(shown, 0)
            self.assertEqual(re.findall(r"^rank (\d) on ", shown.out, re.M), list("0123"))
            self.assertRegex(shown.out, r"thread \d+ train_digits: state")
            self.assertRegex(shown.out, r"#\d .*main")
        training.assert_same_result(self, run.wait(), self.reference(), disturbed=False)

    def wait_for_log(self, run):
        wait_for(lambda: glob.glob(self.path("home/state/hvdlaunch/jobs/*")), 20, lambda: f"the history\n{run}")

    def test_h6_a_stall_is_only_warned_of_unless_asked(self):
        run = self.slow("--stall-timeout", "0.5")
        training.wait_for_checkpoints(run, self.path("ckpt"), 1)
        stopped = run.workers()[1].pid
        kill(stopped, signal.SIGSTOP)
        run.wait_for_text(r"rank 1 on \S+ is stopped")
        kill(stopped, signal.SIGCONT)
        training.assert_same_result(self, run.wait(), self.reference(), disturbed=False)
        self.assertIn("the ranks make progress again", run.err)

    def test_kill_of_the_agent(self):
        run = self.slow("--heartbeat-timeout", "3600")  # silence tells nobody
        training.wait_for_checkpoints(run, self.path("ckpt"))
        kill(run.agents()[0][1].pid)
        training.assert_same_result(self, run.wait(), self.reference())

    def test_three_kills(self):
        run = self.slow(step_ms=20)
        for rank, count in ((1, 1), (2, 2), (0, 3)):
            training.wait_for_checkpoints(run, self.path("ckpt"), count)
            kill(run.wait_for_workers(4)[rank].pid)
        self.assert_code(run.wait(), 0)
        trained = Trained(run)
        self.assertEqual(trained.sha256, self.reference().sha256)
        self.assertGreater(trained.resumed_at, 0)

    def test_a_kill_before_the_first_checkpoint_starts_over(self):
        run = self.start("-np", "4", "--checkpoint-dir", self.path("ckpt"),
                         *training.program(every=1000, step_ms=10))
        kill(run.wait_for_workers(4)[1].pid)
        self.assert_code(run.wait(), 0)
        trained = Trained(run)
        self.assertEqual((trained.sha256, trained.resumed_at), (self.reference().sha256, 0))

    def test_without_a_checkpoint_folder_there_is_no_relaunch(self):
        run = self.start("-np", "4", *training.program(step_ms=10))
        kill(run.wait_for_workers(4)[1].pid)
        self.assert_code(run.wait(), 137)


class BudgetTest(Case):
    def attempts(self, run):
        return max(int(n) for n in lines_of(run.out, 0))

    def test_the_budget_is_kept_to_its_number(self):
        run = self.launch("-np", "2", "--max-restarts", "2", "--checkpoint-dir", self.path("ckpt"), "sh",
                          "-c", "echo $HVD_ATTEMPT; sleep 0.2; kill -KILL $$")
        self.assertIn(run.code, (70, 137), str(run))
        self.assertEqual(self.attempts(run), 3)

    def test_a_crash_loop_ends_after_three(self):
        run = self.launch("-np", "2", "--checkpoint-dir", self.path("ckpt"), "sh", "-c",
                          "echo $HVD_ATTEMPT; [ $HVD_RANK = 0 ] || { sleep 0.2; exit 9; }; exec sleep 60")
        self.assert_code(run, 9)
        self.assertEqual(self.attempts(run), 3)

    def test_a_program_that_is_not_there_is_not_tried_again(self):
        run = self.launch("-np", "2", "--checkpoint-dir", self.path("ckpt"), "no-such-program", timeout=20)
        self.assert_code(run, 127)

    def test_c8_an_address_in_use_costs_one_try(self):
        # Who does not share its port does not get it while it is held, and then gets another.
        listens = ("import os, socket\nif os.environ['RANK'] == '0':\n    s = socket.socket()\n"
                   "    s.bind(('', int(os.environ['MASTER_PORT'])))\n    s.listen()\n"
                   "    print('listens in attempt', os.environ['HVD_ATTEMPT'])")
        run = self.launch("-np", "2", PYTHON, "-c", listens)
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [(0, "listens in attempt 2")], str(run))
        self.assertEqual(run.err.count("rank 0 found its address in use: one more try, at another port"), 1, str(run))
        # One that never gets it has its own code.
        run = self.launch("-np", "1", "sh", "-c", "echo $HVD_ATTEMPT; echo bind: Address already in use >&2; exit 3")
        self.assert_code(run, 3)
        self.assertEqual(lines_of(run.out), [(0, "1"), (0, "2")], str(run))

    def test_a_relaunched_rank_knows_why(self):
        script = ("echo $HVD_ATTEMPT:$HVD_RESTART_REASON;"
                  "[ $HVD_ATTEMPT != 1 ] || { sleep 0.2; kill -KILL $$; }")
        run = self.launch("-np", "1", "--max-restarts", "1", "sh", "-c", script)
        self.assert_code(run, 0)
        first, second = lines_of(run.out, 0)
        self.assertEqual(first, "1:")
        self.assertRegex(second, r"^2:.+")


class ForeignTest(Case):
    def test_a_checkpoint_told_by_datagram_is_resumed(self):
        run = self.launch("-np", "2", "--checkpoint-dir", self.path("ckpt"), PYTHON,
                          f"{PROGRAMS}/foreign.py", self.dir)
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out, 0), [
            "attempt 1 resumes nothing at -", f"attempt 2 resumes {self.path('model-7.pt')} at 7"])

    def test_a_checkpoint_of_the_program_s_own_is_what_resume_goes_on_from(self):
        run = self.launch("-np", "2", "--checkpoint-dir", self.path("ckpt"), "--max-restarts", "0", PYTHON,
                          f"{PROGRAMS}/foreign.py", self.dir)
        self.assert_code(run, 137)
        self.assertIn(f"newest whole checkpoint: the program's own, {self.path('model-7.pt')}\n", run.err)
        self.assertIn(f"to go on: hvdlaunch resume {self.path('ckpt')}\n", run.err)
        resumed = self.launch("resume", self.path("ckpt"))
        self.assertIn(f" resumes {self.path('model-7.pt')} at 7", resumed.out, str(resumed))

    @unittest.skipIf(subprocess.run([PYTHON, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode,
                     f"{PYTHON} has no torch (./dev setup torch)")
    def test_pytorch_ddp_resumes_from_its_own_checkpoint(self):
        ddp = os.path.join(TREE, "examples", "train_ddp.py")
        run = self.start("-np", "2", "--checkpoint-dir", self.path("ckpt"), PYTHON, ddp, "--steps", "60",
                         "--checkpoint-every", "10", "--step-ms", "30")

        def saved():
            found = [n for _, _, names in os.walk(self.path("ckpt")) for n in names if n.endswith(".pt")]
            return len(found) >= 2 or not run.running  # the first has been told about by then

        wait_for(saved, 60, lambda: f"two checkpoints of torch\n{run}")
        kill(run.workers()[1].pid)
        self.assert_code(run.wait(), 0)
        trained = Trained(run)
        self.assertGreater(trained.resumed_at, 0, str(run))
        self.assertEqual(trained.steps, 60)


if __name__ == "__main__":
    main()
