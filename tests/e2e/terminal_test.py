"""A real terminal: Ctrl-Z and fg, a terminal that closes with and without nohup; and --detach."""

import os
import pty
import re
import signal
import time

from harness import HVDLAUNCH, PROGRAMS, PYTHON, Case, Process, is_alive, kill, main, wait_for


class Terminal:
    """A session with a terminal of its own, whose foreground is one hvdlaunch; the session's leader,
    a small program as a shell is, waits for it and continues it on demand."""

    LEADER = r"""
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
os.write(1, b"child %d\n" % child)  # at once: what it starts writes here too
while True:
    pid, status = os.waitpid(child, os.WUNTRACED | os.WCONTINUED)
    if os.WIFSTOPPED(status):
        os.tcsetpgrp(0, os.getpgrp())
        print("STOPPED", os.WSTOPSIG(status), flush=True)
        sys.stdin.readline()
        os.tcsetpgrp(0, child)
        os.killpg(child, signal.SIGCONT)
    elif not os.WIFCONTINUED(status):
        print("CODE", os.waitstatus_to_exitcode(status), flush=True)
        break
"""

    def __init__(self, case, *command):
        self.text = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(PYTHON, [PYTHON, "-c", self.LEADER, *command], case.environment())
        os.set_blocking(self.fd, False)
        self.command = int(self.wait_for(rb"child (\d+)")[1])

    def wait_for(self, pattern, seconds=30):
        def seen():
            try:
                self.text += os.read(self.fd, 65536)
            except (BlockingIOError, OSError):
                pass
            return re.search(pattern, self.text)

        return wait_for(seen, seconds, lambda: f"{pattern} in {self.text.decode(errors='replace')}")

    def type(self, data):
        os.write(self.fd, data)

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def end(self):
        self.close()
        for pid in (self.command, self.pid):
            if is_alive(pid):
                kill(pid)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


def content(path):
    try:
        with open(path) as f:
            return f.read()
    except FileNotFoundError:
        return ""


def state(pid):
    return Process(pid).state


class TerminalTest(Case):
    def terminal(self, *command):
        terminal = Terminal(self, *command)
        self.addCleanup(terminal.end)
        return terminal

    def pids(self, count):
        def all_there():
            found = [int(n) for n in os.listdir(self.dir) if n.isdigit()]
            return found if len(found) == count else None

        return wait_for(all_there, 30, f"{count} processes to name themselves")

    def test_ctrl_z_stops_everything_and_fg_continues(self):
        script = (f"cd {self.dir}; for i in 1 2; do setsid sh -c 'echo > $$; while :; do sleep 0.01; done' & "
                  "done; echo > $$; while :; do sleep 0.01; done")
        terminal = self.terminal(HVDLAUNCH, "-np", "2", "--heartbeat-timeout", "1", "sh", "-c", script)
        pids = self.pids(6)
        for round in (1, 2):
            terminal.type(b"\x1a")
            terminal.wait_for(rb"(?s)(STOPPED.*){%d}" % round)
            self.assertEqual(state(terminal.command), "T")
            wait_for(lambda: all(Process(pid).still for pid in pids), 5,
                     lambda: f"all to stand still: {[Process(pid) for pid in pids]}")
            time.sleep(2.5)  # longer than any lease of a second's silence
            self.assertEqual([p for p in map(Process, pids) if not p.still], [])
            terminal.type(b"\n")
            wait_for(lambda: not {state(pid) for pid in pids} & {"T"}, 10, "all to go on")
            time.sleep(1.5)  # past the silence limit again
            self.assertEqual([pid for pid in pids if not is_alive(pid)], [])
        self.assertIn(b"STOPPED %d" % signal.SIGTSTP, terminal.text)
        terminal.type(b"\x03")
        terminal.wait_for(rb"CODE 130")
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])

    def test_a_suspended_launcher_that_is_killed_leaves_nothing(self):
        terminal = self.terminal(HVDLAUNCH, "-np", "1", "--failure-grace", "0.2", "sh", "-c",
                                 f"cd {self.dir}; echo > $$; while :; do sleep 0.01; done")
        pids = self.pids(1)
        terminal.type(b"\x1a")
        terminal.wait_for(rb"STOPPED")
        kill(terminal.command)
        wait_for(lambda: not any(map(is_alive, pids)), 10, "the ranks to be dead")

    def closes(self, *before):
        terminal = self.terminal(*before, HVDLAUNCH, "-np", "2", "--", PYTHON, f"{PROGRAMS}/saver.py",
                                 self.dir, "0.5")
        out = self.path("nohup.out")
        if before:
            wait_for(lambda: content(out).count("waiting") == 2, 30, "the ranks")
        else:
            terminal.wait_for(rb"(?s)waiting.*waiting")
        return terminal

    def history(self):
        folder = self.path("home/state/hvdlaunch/jobs")
        text = ""
        for root, _, names in os.walk(folder):
            for name in names:
                with open(os.path.join(root, name)) as f:
                    text += f.read()
        return text

    def test_g5_a_terminal_that_closes_is_a_stop_in_order(self):
        terminal = self.closes()
        terminal.close()
        wait_for(lambda: not is_alive(terminal.command), 20, "the launch to end")
        self.assertEqual(sorted(n for n in os.listdir(self.dir) if n.isdigit()), ["0", "1"])
        self.assertIn('"stopped by SIGHUP"', self.history())
        self.assertIn('"exit_code":75', self.history())

    def test_g5_nohup_goes_on(self):
        os.chdir(self.dir)  # of nohup.out
        self.addCleanup(os.chdir, "/")
        terminal = self.closes("nohup")
        terminal.close()
        wait_for(lambda: not is_alive(terminal.pid) or state(terminal.pid) == "Z", 10, "the session to end")
        time.sleep(0.5)
        self.assertTrue(is_alive(terminal.command))
        self.assertNotIn("stopping", content(self.path("nohup.out")))
        kill(terminal.command, signal.SIGTERM)
        wait_for(lambda: not is_alive(terminal.command), 20, "the launch to end")
        self.assertEqual(sorted(n for n in os.listdir(self.dir) if n.isdigit()), ["0", "1"])


class DetachTest(Case):
    def test_a_detached_job_runs_on_and_says_how_to_stop_it(self):
        run = self.launch("--detach", "-np", "2", "--", PYTHON, f"{PROGRAMS}/saver.py", self.dir, "0.1")
        self.assert_code(run, 0)
        self.assertEqual(run.out, "")
        told = re.fullmatch(r"hvdlaunch: job (\S+) runs in the background as process (\d+); its output goes "
                            r"to (\S+); to stop it: kill (\d+)\n", run.err)
        self.assertTrue(told, run.err)
        pid = int(told[2])
        self.assertEqual(os.getsid(pid), pid)
        self.assertEqual([os.readlink(f"/proc/{pid}/fd/{n}") for n in (0, 1, 2)],
                         ["/dev/null", told[3], told[3]])
        wait_for(lambda: content(told[3]).count("waiting") == 2, 10, "the ranks' words")
        # Its history and output stay, however many jobs come after it.
        jobs = os.path.dirname(os.path.dirname(told[3]))
        old = os.path.join(jobs, "20000101-000000-000000")
        for path in (old, *(os.path.join(jobs, f"99990101-000000-{n:06}") for n in range(60))):
            os.mkdir(path)
        self.assert_code(self.launch("-np", "1", "false"), 1)
        self.assertEqual((os.path.exists(old), os.path.exists(told[3])), (False, True))
        kill(pid, signal.SIGHUP)
        kill(pid, signal.SIGTERM)
        wait_for(lambda: not is_alive(pid), 20, "the job to end")
        self.assertTrue(content(told[3]).endswith("hvdlaunch: exit code 75, from hvdlaunch\n"))

    def test_what_cannot_start_says_so_as_without(self):
        run = self.launch("--detach", "-np", "2", "no-such-program-anywhere")
        self.assert_code(run, 127)
        self.assertIn("no-such-program-anywhere", run.err)
        self.assertNotIn("runs in the background", run.err)
        run = self.launch("--detach", "--log-dir", "/proc/no", "-np", "1", "true")
        self.assert_code(run, 2)

    def test_what_cannot_start_says_its_own_words_of_a_file_that_others_wrote_to(self):
        os.mkdir(self.path("logs"))
        self.write("logs/output", "words of another job\n")
        run = self.launch("--detach", "--log-dir", "logs", "-np", "1", "no-such-program-anywhere")
        self.assert_code(run, 127)
        self.assertIn("no-such-program-anywhere", run.err)
        self.assertNotIn("another job", run.err)
        self.assertEqual(content(self.path("logs/output")), "words of another job\n" + run.err)

    def test_a_launch_that_is_ended_before_its_ranks_run_leaves_nothing(self):
        # A host that is never reached.
        waits = self.write("waits", f"#!/bin/sh\n: >{self.path('asked')}\nexec sleep 1000\n")
        os.chmod(waits, 0o700)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            run = self.start("--detach", "--rsh", waits, "-H", "a:1", "true")
            wait_for(lambda: os.path.exists(self.path("asked")), 20, "the host to be asked")
            kill(run.launcher, number)
            self.assertEqual(run.wait(10).code, 128 + number)
            self.assert_nothing_left()
            os.unlink(self.path("asked"))


if __name__ == "__main__":
    main()
