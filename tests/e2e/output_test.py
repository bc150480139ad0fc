"""What ranks write and read: whole lines on the page, raw bytes in log files, standard input."""

import array
import fcntl
import glob
import hashlib
import os
import pty
import re
import select
import shutil
import subprocess
import termios
import threading
import time
import tty

from harness import HVDLAUNCH, PROGRAMS, PYTHON, SLOWNESS, Case, descendants, kill, lines_of, main, wait_for

ROUNDS = int(os.environ.get("E2E_ROUNDS", "8"))  # of what must hold every time
LINES = int(os.environ.get("E2E_LINES", "300"))  # of each rank that writes in pieces


class PageTest(Case):
    def test_e1_lines_in_small_pieces_stay_whole(self):
        run = self.launch("-np", "8", PYTHON, f"{PROGRAMS}/in_pieces.py", str(LINES), "200", "7", timeout=600)
        self.assert_code(run, 0)
        lines = run.out.splitlines()
        self.assertEqual(len(lines), 8 * LINES)
        for rank in range(8):
            wanted = [f"{rank} {n} ".ljust(200, "x") for n in range(LINES)]
            self.assertEqual(lines_of(run.out, rank), wanted)

    def test_e1_half_a_line_is_shown_and_nobody_writes_into_it(self):
        script = (f"until [ $HVD_RANK = 0 -o -e {self.path('0')} ]; do sleep 0.02; done; printf half$HVD_RANK;"
                  f"until [ -e {self.path('rest')}$HVD_RANK ]; do sleep 0.02; done; echo +rest$HVD_RANK")
        run = self.start("-np", "2", "sh", "-c", script)
        run.wait_for_text("0@localhost: half0$")
        self.write("0", "")
        run.wait_for_text("0@localhost: half0\n1@localhost: half1$")
        # The open line goes on in its place; the one that was ended goes on behind its prefix.
        self.write("rest1", "")
        run.wait_for_text("rest1\n")
        self.write("rest0", "")
        self.assert_code(run.wait(), 0)
        self.assertEqual(run.out, "0@localhost: half0\n1@localhost: half1+rest1\n0@localhost: +rest0\n")

    def bar(self, count):
        """A program that shows a bar; each state holds the time it was written."""
        return [PYTHON, "-c", "import sys, time\n"
                f"for n in range({count}):\n"
                "    sys.stdout.write(f'\\r{n} at {time.monotonic():.6f}'); sys.stdout.flush()\n"
                "    time.sleep(0.2)\n"
                "print()"]

    def test_e2_a_bar_is_seen_within_a_second(self):
        read, write = os.pipe()
        run = self.start("-np", "2", "--log-dir", self.path("logs"), *self.bar(12), stdout=write)
        os.close(write)
        seen = []
        with os.fdopen(read, "rb", buffering=0) as reader:
            while chunk := reader.read(4096):
                seen += [(time.monotonic(), at) for at in re.findall(rb"at ([\d.]+)", chunk)]
        self.assert_code(run.wait(), 0)
        self.assertEqual(len(seen), 24)
        for arrived, written in seen:
            self.assertLess(arrived - float(written), 1)
        with open(self.path("logs/latest/rank-1@localhost.out"), "rb") as f:
            self.assertRegex(f.read(), rb"^(\r\d+ at [\d.]+){12}\n$")

    def test_e2_a_bar_stays_in_its_place_on_a_terminal(self):
        ours, theirs = pty.openpty()
        tty.setraw(theirs)
        run = self.start("-np", "1", *self.bar(3), stdout=theirs)
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 4096):
                text += chunk
        except OSError:
            pass  # the last one has closed it
        os.close(ours)
        self.assert_code(run.wait(), 0)
        state = rb"0@localhost: \d at [\d.]+"
        self.assertRegex(text, rb"^\r?" + rb"\r".join([state] * 3) + rb"\n$")

    def test_e3_the_last_lines_are_there(self):
        script = "import os\nos.write(2, b''.join(b'line %d\\n' % n for n in range(10000))); os._exit(3)"
        for number in range(ROUNDS):
            folder = self.path(f"logs-{number}")
            run = self.launch("-np", "2", "--log-dir", folder, PYTHON, "-c", script)
            self.assert_code(run, 3)
            first = int(re.search(r"exit code 3, from rank (\d)", run.err)[1])
            whole = [f"line {n}" for n in range(10000)]
            self.assertEqual(lines_of(run.err, first), whole)
            with open(f"{folder}/attempt-1/rank-{first}@localhost.err") as f:
                self.assertEqual(f.read().splitlines(), whole)

    def test_e3_a_slow_reader_gets_the_last_lines_too(self):
        # More than the launcher takes unread, less than what then stays in the rank's pipe.
        script = "import os\nos.write(2, b''.join(b'line %05d\\n' % n for n in range(98000))); os._exit(3)"
        read, write = os.pipe()
        run = self.start("-np", "1", PYTHON, "-c", script, stderr=write)
        os.close(write)
        run.wait_for_workers(1)
        wait_for(lambda: not run.workers(), 20, "the rank to end")
        time.sleep(0.5)  # in which nothing may be told
        with os.fdopen(read, "r") as reader:
            text = reader.read()
        self.assert_code(run.wait(), 3)
        self.assertEqual(lines_of(text, 0), [f"line {n:05}" for n in range(98000)])
        self.assertLess(text.index("line 97999"), text.index("exit code 3, from rank 0"))

    def test_e4_the_prefix_names_rank_and_host(self):
        hosts = ("--transport", "local", "-H", "one:2,two:2")
        script = "echo I am $HVD_RANK of $HVD_HOST"
        run = self.launch(*hosts, "sh", "-c", script)
        self.assert_code(run, 0)
        for rank, host in enumerate(("one", "one", "two", "two")):
            self.assertEqual(re.findall(rf"^{rank}@.*$", run.out, re.M), [f"{rank}@{host}: I am {rank} of {host}"])
        for host in ("one", "two"):
            self.assertEqual(len(re.findall(rf"^\d@{host}: I am \d of {host}$", run.out, re.M)), 2)
        run = self.launch(*hosts, "--prefix", "[{host}/{local_rank} {rank}] ", "sh", "-c", script)
        self.assertIn("[two/1 3] I am 3 of two\n", run.out)

    def test_e4_without_a_prefix_the_bytes_are_raw(self):
        raw = os.urandom(300_000) + b"\r\r\n\r no end"
        with open(self.path("raw"), "wb") as f:
            f.write(raw)
        for option in (["--prefix", ""], ["--no-prefix"]):
            run = self.launch("-np", "1", *option, "cat", self.path("raw"))
            self.assertEqual(hashlib.sha256(run.raw_out).digest(), hashlib.sha256(raw).digest())

    def test_identical_lines_are_folded_on_request(self):
        script = "echo same; [ $HVD_RANK != 4 ] || echo odd; echo 'and same'"
        run = self.launch("-np", "6", "--fold", "sh", "-c", script)
        self.assert_code(run, 0)
        # Ranks that start late do not meet the others; each line is counted in any case.
        said = {}
        for count, one, text in re.findall(r"^(?:x(\d+)|(\d)@localhost): (.*)$", run.out, re.M):
            said[text] = said.get(text, 0) + int(count or 1)
        self.assertEqual(said, {"same": 6, "odd": 1, "and same": 6}, run.out)
        self.assertRegex(run.out, r"(?m)^x[2-6]: same$")
        self.assertRegex(run.out, r"(?m)^4@localhost: odd$")

    def test_folded_lines_are_whole_and_keep_their_number_without_a_prefix(self):
        # Half a line waits for its end, for longer than the 0.3 s that others get.
        script = (f"printf half >&2; until [ -e {self.path('go')} ]; do sleep 0.02; done; echo ' and half' >&2;"
                  "printf 'no end'")
        for option in ((), ("--no-prefix",)):
            run = self.start("-np", "2", "--fold", *option, "sh", "-c", script)
            run.wait_for_workers(2)
            time.sleep(0.6)
            self.assertNotIn("half", run.err)
            self.write("go", "")
            self.assert_code(run.wait(), 0)
            self.assertEqual((run.err, run.out), ("x2: half and half\n", "x2: no end\n"))
            os.unlink(self.path("go"))


class LostPageTest(Case):
    """A reader of stdout or stderr that takes nothing, or cannot take all."""

    FULL = "No space left on device"

    def end(self, script, code, *options, **streams):
        """A rank runs this with one of the launcher's descriptors on a full disk."""
        with open("/dev/full", "wb") as full:
            streams = {name: full if to == "full" else to for name, to in streams.items()}
            run = self.start("-np", "1", *options, "sh", "-c", script, **streams).wait()
        self.assert_code(run, code)
        return run

    def assert_told(self, run, *lines):
        self.assertEqual([l for l in run.err.splitlines() if l.startswith("hvdlaunch:")],
                         [f"hvdlaunch: {line}" for line in lines])

    def test_e3_a_full_disk_is_no_success_and_no_closed_pipe(self):
        told = f"standard output cannot be written: {self.FULL}"
        own = "exit code 125, from hvdlaunch"
        self.assert_told(self.end("echo out", 125, "-q", stdout="full"), told, own)
        started = time.monotonic()
        run = self.end("trap 'echo last >&2; exit' TERM; echo out; while :; do sleep 0.05; done", 125, stdout="full")
        self.assertLess(time.monotonic() - started, 10)
        self.assert_told(run, told, "the output is lost: stopping all ranks within 30 s, "
                                    "INT or TERM once more kills them now", own)
        self.assertEqual(lines_of(run.err, 0), ["last"])
        self.assert_told(self.end("echo out >&2", 0, stdout="full"))

    def test_e3_a_full_disk_behind_stderr_is_no_success(self):
        self.assertEqual(lines_of(self.end("echo out; echo err >&2", 125, stderr="full").out, 0), ["out"])
        self.end("echo out", 125, stdout="full", stderr="full")
        self.assertEqual(self.end("echo out", 0, stderr="full").out, "0@localhost: out\n")

    def test_e3_a_descriptor_that_is_closed_is_no_success(self):
        run = self.end("echo out", 125, "-q", preexec_fn=lambda: os.close(1))
        self.assert_told(run, "standard output cannot be written: Bad file descriptor", "exit code 125, from hvdlaunch")
        self.end("echo err >&2", 125, preexec_fn=lambda: os.close(2))
        self.end("cat", 0, preexec_fn=lambda: os.closerange(0, 3))

    def test_e3_what_hvdlaunch_prints_itself_is_whole_or_a_failure(self):
        for words in (["--help"], ["-np", "1", "--dry-run", "true"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([HVDLAUNCH, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
            self.assertEqual((done.returncode, done.stderr),
                             (125, f"hvdlaunch: standard output cannot be written: {self.FULL}\n"))

    def test_e3_a_reader_that_is_never_ready_at_once_gets_everything(self):
        read, write = os.pipe()
        os.set_blocking(write, False)
        run = self.start("-np", "1", "--no-prefix", "sh", "-c", "seq 100000", stdout=write)
        os.close(write)
        time.sleep(0.3)  # in which the pipe is full
        with os.fdopen(read, "rb") as reader:
            text = reader.read()
        self.assert_code(run.wait(), 0)
        self.assertEqual(text, b"".join(b"%d\n" % n for n in range(1, 100001)))

    def test_e3_our_words_do_not_wait_for_the_reader_of_stdout(self):
        read, write = os.pipe()
        script = (f"[ $HVD_RANK = 1 ] || exec yes; until [ -e {self.path('go')} ]; do sleep 0.02; done;"
                  "echo last words >&2; exit 7")
        run = self.start("-np", "2", "sh", "-c", script, stdout=write)
        os.close(write)

        def held():
            return array.array("i", fcntl.ioctl(read, termios.FIONREAD, b"1234"))[0]

        size = -1
        while held() != size:  # until nothing more goes in
            size = held()
            time.sleep(0.3)
        self.write("go", "")
        run.wait_for_text("rank 1 on localhost ended with exit code 7\n", 10)
        self.assertEqual(lines_of(run.err, 1), ["last words"])
        self.assertEqual(held(), size)
        with os.fdopen(read, "rb") as reader:
            while reader.read(1 << 20):
                pass
        self.assert_code(run.wait(), 7)

    def test_e3_where_both_are_one_file_all_is_in_order(self):
        read, write = os.pipe()
        script = f"seq 30000; until [ -e {self.path('go')} ]; do sleep 0.02; done; exit 3"
        run = self.start("-np", "1", "sh", "-c", script, stdout=write, stderr=write)
        os.close(write)
        wait_for(lambda: select.select([read], [], [], 0)[0], 20, "output")
        time.sleep(0.3)  # for the rest to be on its way
        self.write("go", "")
        wait_for(lambda: not run.workers(), 20, "the rank to end")
        time.sleep(0.2)  # in which our own words would come first
        with os.fdopen(read, "r") as reader:
            text = reader.read()
        self.assert_code(run.wait(), 3)
        self.assertEqual(lines_of(text, 0)[:30000], [str(n) for n in range(1, 30001)])
        self.assertLess(text.index("0@localhost: 30000\n"), text.index("hvdlaunch: rank 0 on localhost ended"))


class LogTest(Case):
    def content(self, path):
        with open(self.path("logs", path), "rb") as f:
            return f.read()

    def test_e5_each_file_holds_its_rank_s_bytes(self):
        for rank in range(3):
            with open(self.path(str(rank)), "wb") as f:
                f.write(os.urandom(100_000 + rank))
        run = self.launch("-np", "3", "--log-dir", "logs", "--only-ranks", "0", "sh", "-c",
                          f"cat {self.dir}/$HVD_RANK; tail -c 1000 {self.dir}/$HVD_RANK >&2")
        self.assert_code(run, 0)
        self.assertEqual(len(os.listdir(self.path("logs/attempt-1"))), 6)
        for rank in range(3):
            with open(self.path(str(rank)), "rb") as f:
                wrote = f.read()
            self.assertEqual(self.content(f"attempt-1/rank-{rank}@localhost.out"), wrote)
            self.assertEqual(self.content(f"attempt-1/rank-{rank}@localhost.err"), wrote[-1000:])

    def test_e5_a_folder_that_cannot_be_written_is_an_error_before_any_host_is_asked(self):
        plain = self.write("plain", "")
        for folder in (f"{plain}/logs", plain, "/proc/logs", "/sys/kernel"):
            run = self.launch("-np", "1", "-H", "no-such-host.invalid", "--log-dir", folder, "true")
            self.assert_code(run, 2)
            self.assertIn(folder, run.err)
            self.assertNotIn("no-such-host", run.err)

    def test_e6_a_relaunch_overwrites_nothing(self):
        crash = ("--max-restarts", "1", "--log-dir", "logs", "sh", "-c", "echo attempt $HVD_ATTEMPT; exit 3")
        for _ in range(2):
            self.assert_code(self.launch("-np", "1", *crash), 70)
        self.assertEqual(sorted(os.listdir(self.path("logs"))),
                         ["attempt-1", "attempt-2", "attempt-3", "attempt-4", "latest"])
        for number in range(4):
            self.assertEqual(self.content(f"attempt-{number + 1}/rank-0@localhost.out"),
                             f"attempt {number % 2 + 1}\n".encode())
        self.assertEqual(os.readlink(self.path("logs/latest")), "attempt-4")

    def test_e6_two_runs_at_once_keep_to_their_own_folders(self):
        ask = "echo $WHO $HVD_ATTEMPT; until [ -e $GO ]; do sleep 0.02; done; [ $HVD_ATTEMPT = 3 ]"
        runs = {}
        for who in "ab":
            runs[who] = self.start("-np", "1", "--max-restarts", "2", "--log-dir", "logs", "sh", "-c", ask,
                                   env={"WHO": who, "GO": self.path("go")})
            runs[who].wait_for_text(f"{who} 1")
        self.write("go", "")
        for run in runs.values():
            self.assert_code(run.wait(), 0)
        found = [self.content(f"attempt-{n}/rank-0@localhost.out").decode() for n in range(1, 7)]
        self.assertEqual(found[:2], ["a 1\n", "b 1\n"])
        self.assertEqual(sorted(found), [f"{who} {n}\n" for who in "ab" for n in (1, 2, 3)])
        self.assertEqual(sorted(os.listdir(self.path("logs"))), [f"attempt-{n}" for n in range(1, 7)] + ["latest"])
        self.assertIn(" 3\n", self.content("latest/rank-0@localhost.out").decode())

    def test_e6_a_file_of_the_user_s_stays_in_place_of_the_link(self):
        os.mkdir(self.path("logs"))
        self.write("logs/latest", "mine")
        run = self.launch("-np", "1", "--log-dir", "logs", "echo", "said")
        self.assert_code(run, 0)
        self.assertEqual((self.content("latest"), self.content("attempt-1/rank-0@localhost.out")), (b"mine", b"said\n"))
        self.assertEqual(run.err, f"hvdlaunch: {self.path('logs')}/latest: what stands there is no link and stays\n")
        self.assertEqual(sorted(os.listdir(self.path("logs"))), ["attempt-1", "latest"])

    def write_into(self, make, flood):
        """A job that finds that `make` was made of its log file: on the way to its host."""
        log = self.path("logs/attempt-1/rank-0@a.out")
        plants = self.write("plants", f'#!/bin/sh\nshift; {make} {log}; exec "$@"\n')
        os.chmod(plants, 0o700)
        run = self.start("-H", "a:1", "--rsh", plants, "--heartbeat-timeout", f"{SLOWNESS}", "--log-dir",
                         "logs", "sh", "-c", flood)
        return run, log

    def test_e5_a_log_folder_that_hangs_costs_no_host_its_lease(self):
        # A FIFO that nobody reads hangs whoever opens it, as a dead mount does.
        run, log = self.write_into("mkfifo", "yes | head -c 4000000")
        run.wait_for_text("nothing could be written to .*/attempt-1/rank-0@a.out for 5 s")
        self.assertTrue(run.running, str(run))
        with open(log, "rb") as f:
            self.assertEqual(f.read(), b"y\n" * 2_000_000)
        self.assert_code(run.wait(), 0)
        self.assertEqual(len(lines_of(run.out, 0)), 2_000_000)
        self.assertEqual(run.err.count("nothing could be written"), 1)

    def test_e5_a_full_disk_is_said_once_and_changes_nothing_else(self):
        for end, code in (("", 0), ("; exit 3", 3)):
            run, log = self.write_into("ln -s /dev/full", f"yes | head -c 1000000; sleep 0.5; echo end{end}")
            self.assert_code(run.wait(), code)
            self.assertEqual(len(lines_of(run.out, 0)), 500_001)
            self.assertEqual(run.err.count("hvdlaunch: a log file is not whole: "), 1)
            self.assertIn("rank-0@a.out: cannot write: No space left on device\n", run.err)
            shutil.rmtree(self.path("logs"))


class HistoryTest(Case):
    """What the launcher keeps at home, where the home is no good."""

    def test_e5_a_home_that_hangs_delays_no_start_and_costs_no_lease(self):
        job = ("-np", "1", "--heartbeat-timeout", "1", "--checkpoint-dir", "checkpoints", "sh", "-c", "echo out; sleep 2")
        self.assert_code(self.launch(*job), 0)
        (kept,) = glob.glob(self.path("home/state/hvdlaunch/resume/*"))
        # A FIFO that nobody reads hangs whoever opens it, as a dead mount does.
        hang = ("sh", "-c", 'mkfifo "$0/job.toml.tmp-$$"; exec "$@"', kept)
        started = time.monotonic()
        run = self.start(*job, around=hang)
        run.wait_for_text("0@localhost: out")
        self.assertLess(time.monotonic() - started, 4)
        self.assert_code(run.wait(20), 0)
        self.assertLess(time.monotonic() - started, 9)
        self.assertEqual(run.err, "hvdlaunch: no history is kept: nothing could be written to "
                                  f"{kept}/job.toml for 5 s\n")

    def test_a_home_that_cannot_be_written_is_said_once(self):
        self.write("home/state", "in the way")
        run = self.launch("-np", "1", "sh", "-c", "sleep 1.2; exit 3")
        self.assert_code(run, 3)
        self.assertEqual(run.err.count("no history is kept: "), 1)
        self.assertIn(f"cannot make the folder {self.path('home/state')}", run.err)


class InputTest(Case):
    def test_d6_input_is_exact_to_the_byte(self):
        data = os.urandom(5_000_000)
        with open(self.path("data"), "wb") as f:
            f.write(data)
        script = "[ $HVD_RANK = 1 ] && exec sha256sum; cat"
        with open(self.path("data"), "rb") as file:
            run = self.launch("-np", "2", "--stdin", "1", "sh", "-c", script, stdin=file)
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [(1, f"{hashlib.sha256(data).hexdigest()}  -")])

    def test_d6_input_waits_for_a_slow_reader(self):
        read, write = os.pipe()
        run = self.start("-np", "1", "--stdin=0", "sh", "-c",
                         f"until [ -e {self.path('go')} ]; do sleep 0.02; done; exec sha256sum", stdin=read)
        os.close(read)
        data = os.urandom(3_000_000)
        sent = 0
        os.set_blocking(write, False)
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 0.5:  # until nothing is taken any more
            try:
                sent += os.write(write, data[sent : sent + 65536])
                quiet_since = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        self.assertLess(sent, 1_000_000)
        self.write("go", "")
        os.set_blocking(write, True)
        with os.fdopen(write, "wb") as f:
            f.write(data[sent:])
        self.assert_code(run.wait(), 0)
        self.assertEqual(lines_of(run.out), [(0, f"{hashlib.sha256(data).hexdigest()}  -")])

    def test_d6_a_rank_that_ends_early_drops_the_rest(self):
        with open("/dev/zero", "rb") as zeros:
            run = self.launch("-np", "1", "--stdin", "0", "head", "-c", "10", stdin=zeros)
        self.assert_code(run, 0)
        run = self.start("-np", "1", "--stdin", "0", "wc", "-c", stdin=None, preexec_fn=lambda: os.close(0)).wait()
        self.assertEqual(lines_of(run.out), [(0, "0")])

    def test_d6_a_relaunch_has_no_input(self):
        run = self.launch("-np", "1", "--max-restarts", "1", "--stdin", "0", "sh", "-c",
                          "read line; echo got $line; [ $HVD_ATTEMPT = 2 ]", stdin=self.file_of("one\ntwo\n"))
        self.assert_code(run, 0)
        self.assertEqual(lines_of(run.out), [(0, "got one"), (0, "got")])

    def file_of(self, text):
        f = open(self.write("input", text), "rb")
        self.addCleanup(f.close)
        return f

    def test_d6_a_rank_that_is_not_there_is_an_error(self):
        run = self.launch("-np", "2", "--stdin", "2", "true")
        self.assert_code(run, 2)
        self.assertIn("from 0 to 1", run.err)

    def test_d7_what_is_typed_belongs_to_the_shell(self):
        for option in ("", "--stdin 0"):
            self.shell_session(option)

    def shell_session(self, option):
        """An interactive shell with job control starts a job in the background and is typed to."""
        ours, theirs = pty.openpty()
        shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=self.dir,
            env=dict(self.environment(), PS1="> "), start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)))
        os.close(theirs)
        seen = bytearray()

        def listen():
            try:
                while chunk := os.read(ours, 4096):
                    seen.extend(chunk)
            except OSError:
                pass

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            os.write(ours, f"{HVDLAUNCH} -np 1 {option} sh -c 'echo up; exec sleep 1' &\n".encode())
            wait_for(lambda: b"0@localhost: up" in seen, 20, lambda: f"the rank in {seen}")
            os.write(ours, b"echo typed-$((1+1))\n")
            wait_for(lambda: re.search(rb"[\r\n]typed-2", seen), 10, lambda: f"the shell's answer in {seen}")
            os.write(ours, b"wait; echo ended-$?-$((2+2)); jobs\n")
            wait_for(lambda: re.search(rb"[\r\n]ended-0-4", seen), 20, lambda: f"the end in {seen}")
            self.assertNotIn(b"Stopped", seen)
        finally:
            for one in descendants(shell.pid):  # none, unless the job stands still
                kill(one.pid)
            os.write(ours, b"exit\n")
            shell.wait(20)
            listener.join(20)
            os.close(ours)


if __name__ == "__main__":
    main()
