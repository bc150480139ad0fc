"""Launches on this machine: what workers are given, what is printed, how it ends."""

import hashlib
import json
import os
import re
import resource
import subprocess
import time
import unittest

from harness import HVDLAUNCH, PROGRAMS, PYTHON, SLOWNESS, Case, kill, lines_of, main, wait_for

PROBE = [PYTHON, f"{PROGRAMS}/probe.py"]


class OutputTest(Case):
    def test_every_line_carries_rank_and_host(self):
        run = self.launch("-np", "4", "--", "sh", "-c", "echo hello $HVD_RANK of $HVD_SIZE")
        self.assert_code(run, 0)
        host = re.escape(os.uname().nodename)
        lines = sorted(run.out.splitlines())
        for rank, line in enumerate(lines):
            self.assertRegex(line, rf"^{rank}@({host}|localhost): hello {rank} of 4$")
        self.assertEqual(len(lines), 4)

    def test_standard_error_stays_standard_error(self):
        run = self.launch("-np", "1", "sh", "-c", "echo to-out; echo to-err >&2")
        self.assertEqual(lines_of(run.out), [(0, "to-out")])
        self.assertIn((0, "to-err"), lines_of(run.err))
        self.assertNotIn("to-out", run.err)

    def test_lines_stay_whole_and_in_order(self):
        run = self.launch("-np", "4", PYTHON, f"{PROGRAMS}/chatter.py", "2000")
        self.assert_code(run, 0)
        for rank in range(4):
            for text, first in ((run.out, 0), (run.err, 1)):
                wanted = [f"line {n} {'x' * (n * 37 % 500)}" for n in range(first, 2000, 2)]
                self.assertEqual(lines_of(text, rank), wanted)

    def test_a_last_line_without_an_end_is_printed(self):
        run = self.launch("-np", "2", "printf", "no newline")
        self.assertEqual(sorted(lines_of(run.out)), [(0, "no newline"), (1, "no newline")])

    def test_much_output_arrives_intact(self):
        script = ("import os, sys\n"
                  "r = os.environ['HVD_RANK']\n"
                  "for i in range(200000): sys.stdout.write(f'{r} {i} of some words to fill the line\\n')")
        run = self.launch("-np", "2", PYTHON, "-c", script)
        self.assert_code(run, 0)
        for rank in range(2):
            wanted = hashlib.sha256()
            for i in range(200000):
                wanted.update(f"{rank} {i} of some words to fill the line\n".encode())
            got = hashlib.sha256("".join(f"{l}\n" for l in lines_of(run.out, rank)).encode())
            self.assertEqual(got.hexdigest(), wanted.hexdigest())

    def test_bytes_that_are_no_text_pass(self):
        run = self.launch("-np", "1", "printf", "a\\377\\001b\\n")
        self.assertTrue(run.raw_out.endswith(b": a\xff\x01b\n"), run.raw_out)

    def test_a_reader_that_goes_ends_the_launch(self):
        folder = self.path("pipe")
        os.mkdir(folder)
        read, write = os.pipe()
        run = self.start("-np", "2", "sh", "-c", "while :; do echo y; done", stdout=write)
        os.close(write)
        with os.fdopen(read, "rb") as reader:
            self.assertIn(b": y", reader.readline())
        run.wait(30)
        self.assertNotEqual(run.code, 0)

    def test_a_slow_reader_costs_no_host_its_lease(self):
        read, write = os.pipe()
        size = 3_000_000
        run = self.start("-np", "2", "--heartbeat-timeout", f"{SLOWNESS}", "sh", "-c",
                         f"yes | head -c {size}", stdout=write)
        os.close(write)
        time.sleep(3 * SLOWNESS)  # the reader is slow for three silence limits
        self.assertTrue(run.running, str(run))
        with os.fdopen(read, "rb") as reader:
            lines = reader.read().splitlines()
        run.wait()
        self.assert_code(run, 0)
        self.assertEqual(len(lines), 2 * size // 2)
        self.assertEqual({line.split(b": ")[1] for line in lines}, {b"y"})


class EndingTest(Case):
    def fails_with(self, code, script, *words, size=4):
        run = self.launch("-np", str(size), "--", "sh", "-c", script)
        self.assert_code(run, code)
        for word in words:
            self.assertIn(word, run.err)
        return run

    def test_all_good(self):
        self.assert_code(self.launch("-np", "4", "true"), 0)

    def test_the_word_run_may_be_written(self):
        run = self.launch("run", "-np", "1", "--", "echo", "hi")
        self.assertEqual(lines_of(run.out), [(0, "hi")])

    def test_the_first_abnormal_end_decides(self):
        started = time.monotonic()
        self.fails_with(7, "[ $HVD_RANK != 2 ] || exit 7; exec sleep 100", "rank 2", "7")
        self.assert_within(started, 20)

    def test_a_signal_is_128_and_its_number(self):
        self.fails_with(128 + 11, "[ $HVD_RANK != 1 ] || kill -SEGV $$; exec sleep 100",
                        "rank 1", "SIGSEGV")

    def test_the_end_of_its_stderr_is_told(self):
        run = self.fails_with(3, "echo the disk is full >&2; exit 3", size=1)
        self.assertGreaterEqual(run.err.count("the disk is full"), 1)

    def test_a_program_that_is_not_there_is_127(self):
        run = self.launch("-np", "2", "no-such-program-anywhere")
        self.assert_code(run, 127)
        self.assertIn("no-such-program-anywhere", run.err)

    def test_a_program_that_cannot_be_run_is_126(self):
        plain = self.write("plain", "text\n")
        run = self.launch("-np", "2", plain)
        self.assert_code(run, 126)
        self.assertIn(plain, run.err)

    def test_ranks_may_end_at_different_times(self):
        self.assert_code(self.launch("-np", "3", "sh", "-c", "sleep 0.$HVD_RANK"), 0)

    def test_many_ranks(self):
        run = self.launch("-np", "64", "sh", "-c", "echo $HVD_RANK")
        self.assert_code(run, 0)
        self.assertEqual(sorted(r for r, _ in lines_of(run.out)), list(range(64)))


class WorkerTest(Case):
    def probe(self, *options, size=1, args=(), env=None, cwd=None):
        run = self.launch("-np", str(size), *options, "--", *PROBE, *args,
                          env=dict(env or {}, PROBE_DIR=self.dir), cwd=cwd)
        self.assert_code(run, 0)
        seen = []
        for rank in range(size):
            with open(self.path(f"{rank}.json")) as f:
                seen.append(json.load(f))
        return seen

    def test_d4_arguments_arrive_byte_for_byte(self):
        args = ["", " ", "a b", "new\nline", "quote ' and \"", "$HOME `id` ; | & > < *", "\\", "--np",
                "-n", "--", "ünïcödé 漢字 🚀", "\udcff\udcfe", "[a,b]", "{rank}", "%s", "=", "#x", "~"]
        seen = self.probe(args=args)[0]["argv"]
        self.assertEqual([a.encode("latin-1") for a in seen], [os.fsencode(a) for a in args])

    def test_long_arguments_arrive(self):
        args = ["x" * 100_000, *(str(n) for n in range(2000))]
        self.assertEqual(self.probe(args=args)[0]["argv"], args)

    def test_d2_d3_environment_arrives_byte_for_byte(self):
        values = {"E2E_EMPTY": "", "E2E_LINES": "a\nb\n", "E2E_QUOTE": "'\"$(id)`\\", "E2E_SPACE": "  x ",
                  "E2E_UTF8": "ünïcödé 🚀", "E2E_RAW": "\udcff\x01", "E2E_EQUAL": "=a=b=",
                  "E2E_COMMAND": "$(x);y", "E2E_LONG": "x" * 100_000, "E2E_DOT.TED": "1",
                  "BASH_FUNC_f%%": "() { :; }"}
        seen = self.probe(env=values)[0]["environment"]
        for name, value in values.items():
            self.assertEqual(seen[name].encode("latin-1"), os.fsencode(value), name)

    def test_x_sets_and_forwards(self):
        seen = self.probe("-x", "E2E_A=1=2\n3", "-x", "E2E_B=", "-x", "E2E_C", "-x", "E2E_A=last",
                          env={"E2E_C": "from here"})[0]["environment"]
        self.assertEqual((seen["E2E_A"], seen["E2E_B"], seen["E2E_C"]), ("last", "", "from here"))

    def test_places(self):
        seen = [s["environment"] for s in self.probe(size=3)]
        for rank, env in enumerate(seen):
            for name, value in {"HVD_RANK": rank, "RANK": rank, "HVD_LOCAL_RANK": rank, "LOCAL_RANK": rank,
                                "HVD_SIZE": 3, "WORLD_SIZE": 3, "HVD_LOCAL_SIZE": 3,
                                "LOCAL_WORLD_SIZE": 3}.items():
                self.assertEqual(env.get(name), str(value), name)
        for name in ("HVD_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "HVD_HOST"):
            self.assertEqual(len({env[name] for env in seen}), 1, name)

    def test_stale_places_do_not_leak_in(self):
        stale = {"HVD_RANK": "77", "RANK": "77", "WORLD_SIZE": "77", "MASTER_ADDR": "stale",
                 "OMPI_COMM_WORLD_RANK": "77", "PMI_RANK": "77", "PMIX_RANK": "77", "HOROVOD_RANK": "77",
                 "SLURM_PROCID": "77", "HVD_STALE": "77"}
        seen = self.probe(env=stale)[0]["environment"]
        left = [n for n, v in seen.items() if v in ("77", "stale")]
        self.assertEqual(left, [])

    def test_a_worker_starts_clean(self):
        seen = self.probe()[0]
        self.assertEqual(seen["stdin"], "/dev/null")
        self.assertEqual(seen["fds"], [0, 1, 2])
        self.assertEqual(seen["blocked"], 0)
        self.assertTrue(seen["session_leader"])

    def test_workers_run_where_the_user_stood(self):
        folder = self.path("a folder, ünd more")
        os.mkdir(folder)
        self.assertEqual(self.probe(cwd=folder)[0]["cwd"], os.path.realpath(folder))

    def test_j7_no_rank_is_bound_unasked(self):
        own = sorted(os.sched_getaffinity(0))
        for size in (1, 2, 4):
            for seen in self.probe(size=size, env={"OMP_NUM_THREADS": None}):
                self.assertEqual(seen["processors"], own)
                self.assertEqual(seen["environment"]["OMP_NUM_THREADS"], str(max(1, len(own) // size)))
        seen = self.probe(env={"OMP_NUM_THREADS": "77"})[0]
        self.assertEqual(seen["environment"]["OMP_NUM_THREADS"], "77")

    def test_j7_bound_ranks_share_the_cores(self):
        own = sorted(os.sched_getaffinity(0))
        seen = self.probe("--bind", "core", size=len(own))
        self.assertEqual(sorted(p for s in seen for p in s["processors"]), own)
        self.assertEqual(self.probe("--bind", "numa")[0]["processors"], own)

    def test_what_is_printed_is_what_is_given(self):
        given = self.probe("-x", "E2E_A=1", size=2)
        run = self.launch("-np", "2", "-x", "E2E_A=1", "--print-env", env={"PROBE_DIR": self.dir})
        self.assert_code(run, 0)
        fresh = {"HVD_JOB_ID", "HVD_AGENT_SOCKET", "MASTER_PORT", "NOTIFY_SOCKET", "TORCHELASTIC_RUN_ID"}
        for rank, seen in enumerate(given):
            printed = dict(line.split("=", 1) for line in lines_of(run.out, rank) if "=" in line)
            self.assertLessEqual(fresh, printed.keys())
            for name, value in seen["environment"].items():
                if name not in fresh and "\n" not in value:
                    self.assertEqual(printed.get(name), value, name)

    def test_a8_options_end_at_the_program(self):
        run = self.launch("-np", "1", "echo", "-np", "9", "--frob", "--")
        self.assertEqual(lines_of(run.out), [(0, "-np 9 --frob --")])

    def test_a_dry_run_shows_what_the_run_does(self):
        words = "{rank}/{size} {local_rank}@{host} {attempt} <{resume_from}{resume_step}>"
        job = ("--transport", "local", "-H", "a:2,b:1", "--substitute", "echo", words)
        plan = self.launch(*job[:-2], "--dry-run", *job[-2:])
        self.assert_code(plan, 0)
        planned = re.findall(r"(?m)^(\d)  +(\w) +\d +echo '(.*)'$", plan.out)
        said = re.findall(r"(?m)^(\d)@(\w): (.*)$", self.launch(*job).out)
        self.assertEqual(len(planned), 3, plan.out)
        self.assertEqual(planned, sorted(said))
        hosts = self.write("gpus.toml", '[[host]]\nname = "localhost"\ngpus = [0, 1]\n')
        for option in ((), ("--gpus-per-rank", "1")):
            job = ("-H", hosts, "-N", "3", "--oversubscribe", *option, "true")
            plan, run = self.launch("--dry-run", *job), self.launch(*job)
            self.assertEqual((plan.code, run.code), (2, 2) if option else (0, 0))
            self.assertEqual(plan.err, "".join(l for l in run.err.splitlines(True) if "exit code" not in l))

    def test_standard_input_may_be_closed(self):
        run = self.start("-np", "1", "cat", stdin=None, preexec_fn=lambda: os.close(0)).wait()
        self.assert_code(run, 0)


    def test_many_ranks_need_no_high_limit_on_open_files(self):
        def lower():
            resource.setrlimit(resource.RLIMIT_NOFILE, (48, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        run = self.launch("-np", "24", "sh", "-c", "ulimit -S -n", preexec_fn=lower)
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out, 7), ["48"])
        self.assertEqual(len(lines_of(run.out)), 24)

    def test_python_is_not_told_to_hold_its_lines_back(self):
        self.assertEqual(self.probe()[0]["environment"]["PYTHONUNBUFFERED"], "1")
        self.assertEqual(self.probe(env={"PYTHONUNBUFFERED": ""})[0]["environment"]["PYTHONUNBUFFERED"], "")


class LeftoversTest(Case):
    """The look for leftovers after every test finds what it is there to find."""

    def test_the_look_sees_a_child_in_a_session_of_its_own(self):
        run = self.start("-np", "1", PYTHON, f"{PROGRAMS}/stubborn.py", self.dir)
        run.wait_for_text("settled")
        wait_for(lambda: sum(n.isdigit() for n in os.listdir(self.dir)) == 2, 10, "both processes")
        pids = {int(n) for n in os.listdir(self.dir) if n.isdigit()}
        self.assertLessEqual(pids, {p.pid for p in self.job_processes()})
        kill(run.launcher)

    def test_children_do_not_outlive_their_rank(self):
        script = "setsid sleep 1000 & (setsid sleep 1000 &) ; exit 0"
        self.assert_code(self.launch("-np", "2", "sh", "-c", script), 0)


class HeadTest(Case):
    def test_version_and_help(self):
        for option, word in (("--help", "--np"), ("--version", "hvdlaunch")):
            done = subprocess.run([HVDLAUNCH, option], capture_output=True, text=True, timeout=10)
            self.assertEqual(done.returncode, 0)
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    main()
