"""How jobs end on this machine: exit codes, who spoke, causes and consequences, stops in order. After
each test the harness finds nothing left of the job."""

import glob
import json
import os
import resource
import signal
import subprocess
import time

from harness import HVDLAUNCH, PROGRAMS, PYTHON, Case, kill, main, plain_build_only, wait_for

SAVER = [PYTHON, f"{PROGRAMS}/saver.py"]


class EndingsCase(Case):
    def waiting(self, *options, program, size=2, env=None, word="waiting"):
        run = self.start("-np", str(size), *options, "--", *program, env=env)
        wait_for(lambda: run.out.count(word) == size, 30, lambda: f"{size} ranks to say '{word}'\n{run}")
        return run

    def saver(self, *options, seconds=0.2, helpers=0, env=None, size=2):
        program = [*SAVER, self.dir, str(seconds), str(helpers)]
        return self.waiting(*options, program=program, size=size, env=env)

    def saved(self):
        return sorted(n for n in os.listdir(self.dir) if n.isdigit())

    def report(self):
        """report.json of the one job whose history is kept."""
        paths = glob.glob(self.path("home/state/hvdlaunch/jobs/*/report.json"))
        self.assertEqual(len(paths), 1)
        with open(paths[0]) as f:
            return json.load(f)

    def assert_speaker(self, run, code, who):
        self.assert_code(run, code)
        self.assertEqual(run.err.splitlines()[-1], f"hvdlaunch: exit code {code}, from {who}")
        self.assertEqual(self.report()["origin"], "hvdlaunch" if who == "hvdlaunch" else "worker")


class CodesTest(EndingsCase):
    def test_f1_a_rank_s_own_code_and_who_spoke(self):
        for script, code in (("exit 1", 1), ("exit 42", 42), ("exit 255", 255), ("kill -KILL $$", 137),
                             ("kill -ABRT $$", 134)):
            with self.subTest(script):
                run = self.launch("-np", "2", "sh", "-c", f"[ $HVD_RANK = 0 ] || {{ {script}; }}; sleep 50")
                host = os.uname().nodename
                self.assertEqual(run.err.splitlines()[-1].replace(host, "localhost"),
                                 f"hvdlaunch: exit code {code}, from rank 1 on localhost")
                self.assert_code(run, code)
        self.assertEqual(self.launch("-np", "2", "true").err, "")

    @plain_build_only("AddressSanitizer's shadow needs more memory than the limit leaves")
    def test_f1_its_own_failure_is_125(self):
        def little_memory():
            resource.setrlimit(resource.RLIMIT_AS, (40 << 20, 40 << 20))

        run = self.start("-np", "1000000", "--oversubscribe", "--dry-run", "true",
                         preexec_fn=little_memory).wait()
        self.assert_code(run, 125)
        self.assertTrue(run.err.endswith("hvdlaunch: exit code 125, from hvdlaunch\n"), run.err)

    def test_f2_the_cause_is_the_same_in_every_run(self):
        script = ("trap 'exit 221' TERM; [ $HVD_RANK != 3 ] || exit 7;"
                  "[ $HVD_RANK = 5 ] || exec sleep 100; while :; do sleep 0.01; done")
        for _ in range(100):
            run = self.launch("-np", "8", "sh", "-c", script)
            self.assert_code(run, 7)
            self.assertRegex(run.err.splitlines()[-1], "^hvdlaunch: exit code 7, from rank 3 on ")
            run.command.end()
        self.assertRegex(run.err, r"(?m)^hvdlaunch: rank 3 on \S+ ended with exit code 7$")
        self.assertIn("what followed:", run.err)
        self.assertRegex(run.err, r"(?m)^hvdlaunch:   rank \d on \S+ was killed by SIGTERM, and \d more$")

    def test_f4_a_failure_ends_the_others_in_bounded_time(self):
        script = ("trap 'echo on' TERM; [ $HVD_RANK != 1 ] || { sleep 0.2; exit 1; };"
                  "while :; do sleep 0.1; done")
        started = time.monotonic()
        run = self.launch("-np", "3", "--failure-grace", "1", "sh", "-c", script)
        self.assert_code(run, 1)
        self.assert_within(started, 6)

    def test_f5_zeros_beside_a_failure_are_no_success(self):
        script = ("trap 'exit 0' TERM; [ $HVD_ATTEMPT = 1 ] || exit 0;"
                  "[ $HVD_RANK != 2 ] || kill -KILL $$; while :; do sleep 0.01; done")
        self.assert_code(self.launch("-np", "3", "sh", "-c", script), 137)
        run = self.launch("-np", "3", "--max-restarts", "1", "sh", "-c", script)
        self.assert_code(run, 0)
        self.assertIn("finished after 2 attempts", run.err)


class StopTest(EndingsCase):
    def test_g3_a_stop_in_order_with_a_save_is_75(self):
        run = self.saver()
        kill(run.launcher, signal.SIGTERM)
        self.assert_speaker(run.wait(20), 75, "hvdlaunch")
        self.assertEqual(self.saved(), ["0", "1"])

    def test_g3_the_grace_is_every_rank_s_own(self):
        """One rank ends at once and with a failure; the other takes its time, and is counted down."""
        run = self.saver("--grace", "20", seconds=2, env={"EARLY": "1", "SILENT": "1"})
        kill(run.launcher, signal.SIGINT)
        self.assert_speaker(run.wait(30), 130, "hvdlaunch")
        self.assertEqual(self.saved(), ["0"])
        self.assertIn("SIGINT: stopping all ranks within 20 s", run.err)

    def test_g3_the_grace_ends(self):
        run = self.saver("--grace", "1", seconds=60)
        started = time.monotonic()
        kill(run.launcher, signal.SIGTERM)
        self.assert_speaker(run.wait(20), 143, "hvdlaunch")
        self.assertGreaterEqual(time.monotonic() - started, 1)
        self.assert_within(started, 6)
        self.assertEqual(self.saved(), [])

    def test_a_reader_that_is_gone_is_a_stop_in_order(self):
        noisy = f"while :; do echo y; sleep 0.01; done & exec {' '.join(SAVER)} {self.dir} 0.3"
        for silent, code in ((None, 75), ("1", 141)):
            with self.subTest(code=code):
                read, write = os.pipe()
                run = self.start("-np", "2", "sh", "-c", noisy, stdout=write, env={"SILENT": silent})
                os.close(write)
                with os.fdopen(read, "rb") as reader:
                    waiting = 0
                    while waiting < 2:
                        waiting += b"waiting" in reader.readline()
                self.assert_code(run.wait(20), code)
                self.assertIn("SIGPIPE: stopping all ranks within 30 s", run.err)
                self.assertEqual(self.saved(), ["0", "1"])
                for name in self.saved():
                    os.unlink(self.path(name))

    def test_g6_only_the_main_process_gets_term(self):
        run = self.saver(helpers=4)
        kill(run.launcher, signal.SIGTERM)
        self.assert_code(run.wait(20), 75)
        self.assertEqual(self.saved(), ["0", "1"])
        self.assertNotIn("a helper is gone", run.out)

    def test_g2_a_child_that_holds_the_output_holds_nothing_up(self):
        started = time.monotonic()
        run = self.launch("-np", "2", "sh", "-c", "echo out; sleep 999 & (setsid sleep 998 &); exit 0")
        self.assert_code(run, 0)
        self.assert_within(started, 5)
        self.assertEqual(run.out.count("out"), 2)
        self.assertEqual(run.command.processes(), [])


class WallTimeTest(EndingsCase):
    def test_the_end_lies_inside_the_wall_time(self):
        for silent, code in ((None, 75), ("1", 124)):
            with self.subTest(code=code):
                started = time.monotonic()
                run = self.launch("-np", "2", "--walltime", "4", "--grace", "1", "--", *SAVER, self.dir, "0.3",
                                  env={"SILENT": silent})
                self.assertLess(time.monotonic() - started, 4)
                self.assert_code(run, code)
                self.assertIn(f"exit code {code}, from hvdlaunch", run.err)
                self.assertIn("the wall time of 4 s ends in 1.4 s: stopping all ranks within 1 s", run.err)
                self.assertEqual(self.saved(), ["0", "1"])
                for name in self.saved():
                    os.unlink(self.path(name))


class ManualTest(Case):
    def test_every_own_exit_code_is_in_the_manual(self):
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
        with open(os.path.join(here, "base/exit_codes.h")) as f:
            codes = [int(l.split("=")[1].split(";")[0]) for l in f if l.startswith("inline constexpr int")]
        with open(os.path.join(here, "man/hvdlaunch.1")) as f:
            table = f.read().split(".Sh EXIT STATUS")[1].split(".Sh FAILURES")[0]
        told = {int(w) for l in table.splitlines() if l.startswith(".It") for w in l.split() if w.isdigit()}
        self.assertLessEqual(set(codes) - {128}, told)
        usage = subprocess.run([HVDLAUNCH, "--help"], capture_output=True, text=True, timeout=10).stdout
        told = usage.split("Exit status:")[1]
        self.assertEqual([c for c in codes if c != 128 and f"{c}" not in told], [])


if __name__ == "__main__":
    main()
