"""Hosts reached by a program of the user's own: one that runs the words it is given, as kubectl exec
and docker exec do, and one that joins them for a login shell, as ssh does."""

import os
import stat
import sys

from harness import SLOWNESS, Case, kill, lines_of, main, wait_for

RUNS_WORDS = '#!/bin/sh\n[ "$1" = -t ] && shift; echo "$1" >>"$LOG"; shift; exec "$@"\n'
JOINS_WORDS = '#!/bin/sh\nhost=$1; shift; echo "$host" >>"$LOG"; exec ${LOGIN:-sh} -c "$*"\n'


class RshTest(Case):
    def program(self, name, text):
        path = self.write(name, text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def by(self, rsh, *words, login="sh"):
        return self.launch("-H", "a:2,b:1", "--rsh", rsh, *words,
                           env={"LOG": self.path("log"), "LOGIN": login})

    def check_ran(self, run):
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "a 0"), (1, "a 1"), (2, "b 0")], str(run))
        with open(self.path("log")) as f:
            self.assertEqual(sorted(f.read().split()), ["a", "b"])
        os.unlink(self.path("log"))

    def test_words_that_are_run_and_words_that_are_joined(self):
        odd = ("sh", "-c", 'test "$1" = "a b" && echo $HVD_HOST $HVD_LOCAL_RANK', "sh", "a b")
        self.check_ran(self.by(self.program("runs", RUNS_WORDS) + " -t {host}", *odd))
        joins = self.program("joins it", JOINS_WORDS)
        for login in ("sh", "bash", "tcsh", "fish"):
            self.check_ran(self.by(f"'{joins}'", *odd, login=login))

    def test_a_program_that_fails_is_quoted(self):
        fails = self.program("fails", "#!/bin/sh\necho no route to pod $1 >&2\nprintf '\\033[2J' >&2\nexit 7\n")
        run = self.launch("-H", "a:1,b:1", "--rsh", fails, "true")
        self.assert_code(run, 69)
        for host in ("a", "b"):
            self.assertIn(f"cannot reach {host}: {fails} ended with exit code 7: no route to pod {host}", run.err)
        self.assertNotIn("\x1b", run.err)

    def test_a_program_that_is_not_there(self):
        run = self.launch("-H", "a:1", "--rsh", "no-such-program", "true")
        self.assert_code(run, 69)
        self.assertIn("cannot reach a: 'no-such-program' was not found in PATH", run.err)

    def test_what_is_no_command_is_refused_with_2(self):
        for words in (("--rsh", "x 'y"), ("--rsh", "x {hots}"), ("--transport", "pigeon"),
                      ("--rsh", "x", "--transport", "openssh")):
            run = self.launch("-H", "a:1", *words, "true")
            self.assert_code(run, 2)
            self.assertIn("expected", run.err)

    def test_nothing_of_the_program_outlives_a_launcher_that_is_killed(self):
        wraps = self.program("wraps", '#!/bin/sh\nshift\n"$@"\nexit $?\n')
        run = self.start("-H", "a:1", "--rsh", wraps, "--heartbeat-timeout", "2", "sleep", "1000")
        run.wait_for_workers(1)
        kill(run.launcher)
        self.assert_nothing_left(10)

    def test_a_program_that_hangs_is_given_up_and_killed(self):
        hangs = self.program("hangs", "#!/bin/sh\necho dialling >&2\nsleep 1000\nexit\n")
        run = self.launch("-H", "a:1", "--rsh", hangs, "--start-timeout", "1", "true")
        self.assert_code(run, 69)
        self.assertRegex(run.err, "a: the connection was not ready within the start deadline: dialling")

    def test_an_ended_program_is_an_ended_agent(self):
        runs = self.program("runs", RUNS_WORDS)
        run = self.start("-H", "a:1", "--rsh", runs, "sleep", "1000", env={"LOG": self.path("log")})
        run.wait_for_workers(1)
        keeper, _ = wait_for(run.agents, 10, "an agent")[0]
        kill(keeper.pid)
        self.assertNotEqual(run.wait().code, 0)
        self.assertIn(f"the connection to a: {runs} ended by SIGKILL", run.err)

    def hostile(self, mode, *words):
        """A launch on the honest host a and on b, whose agent is none of ours."""
        agent = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "hostile_agent.py")
        rsh = self.program("hostile", f'#!/bin/sh\nhost=$1; shift\n[ $host = a ] && exec "$@"\n'
                           f"exec {sys.executable} {agent} {mode} \"$@\"\n")
        run = self.launch("-H", "a:1,b:1", "--rsh", rsh, "--start-timeout", f"{5 * SLOWNESS}", *words)
        self.assertNotIn("\x1b", run.out + run.err)
        self.assertNotIn("stolen", run.out)
        return run

    def test_a_hostile_agent_speaks_for_no_other_host(self):
        run = self.hostile("lies", "sh", "-c", "sleep 0.5; echo honest")
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "honest"), (1, "my own")], str(run))

    def test_a_hostile_agent_s_frames_end_its_own_link_only(self):
        for mode, why in (("long", "b sent a message that is too long"), ("none", "b sent a message that is none"),
                          ("early", "b sent its messages out of order"), ("twice", "b sent its messages out of order")):
            run = self.hostile(mode, "true")
            self.assertIn(run.code, (69, 70), str(run))
            self.assertIn(why, run.err)

    def test_every_host_can_be_this_machine(self):
        run = self.launch("-H", "a:2,b:1", "--transport", "local", "sh", "-c", "echo $HVD_HOST $HVD_LOCAL_RANK")
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)), [(0, "a 0"), (1, "a 1"), (2, "b 0")])


if __name__ == "__main__":
    main()
