"""What is done about failures beside a plain relaunch: hosts that are taken away."""

import contextlib
import glob
import json
import os
import signal
import threading
import time

import training
from harness import PROGRAMS, PYTHON, Case, Trained, kill, lines_of, main, wait_for


@contextlib.contextmanager
def pulses(pid, still, awake):
    """The process stands still for so many seconds, and runs for so many, again and again."""
    over = threading.Event()

    def pulse():
        while not over.is_set():
            kill(pid, signal.SIGSTOP)
            time.sleep(still)
            kill(pid, signal.SIGCONT)
            time.sleep(awake)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class PolicyCase(Case):
    """Jobs of several hosts that are this machine."""

    def hosts(self, names, spares=(), slots=1):
        text = "".join(f'[[host]]\nname = "{n}"\nslots = {slots}\n' for n in names)
        text += "".join(f'[[host]]\nname = "{n}"\nslots = {slots}\nspare = true\n' for n in spares)
        return ["-H", self.write("hosts.toml", text), "--transport", "local"]

    def agent(self, run, host):
        """Of the host with this number."""
        def number(p):
            return p.argv()[p.argv().index("--host") + 1]

        return next(agent.pid for _, agent in run.agents() if number(agent) == str(host))


class PreemptionTest(PolicyCase):
    def savers(self, *options):
        saves = self.path("saves")
        os.mkdir(saves)
        run = self.start(*options, "--checkpoint-dir", self.path("ckpt"), PYTHON, f"{PROGRAMS}/saver.py", saves, "0.2")
        run.wait_for_text("waiting\n(.*\n)*.*waiting\n")
        return run

    def test_a_host_that_is_told_to_end_saves_and_a_spare_takes_its_ranks(self):
        run = self.savers(*self.hosts(["a", "b"], ["c"]))
        kill(self.agent(run, 1), signal.SIGTERM)
        run.wait_for_text("attempt 2 goes on from step 7")
        run.wait_for_text("(?s)(waiting.*){3}1@c: waiting|1@c: (.*waiting){2}")
        self.assertIn("b is preempted: its agent was told to end (SIGTERM): stopping all ranks within 28 s", run.err)
        self.assertIn("the spare c takes the ranks of b", run.err)
        # Without another spare that is the end, saved.
        kill(self.agent(run, 0), signal.SIGTERM)
        self.assert_code(run.wait(), 75)

    def test_a_notice_to_the_launcher_saves_the_whole_job(self):
        run = self.savers("-np", "2")
        kill(run.launcher, signal.SIGUSR1)
        self.assert_code(run.wait(), 75)
        self.assertIn("preempted by SIGUSR1: stopping all ranks within 28 s", run.err)


class HostsTest(PolicyCase):
    def test_a_spare_that_is_up_takes_over_and_the_host_comes_back(self):
        run = self.start(*self.hosts(["a", "b"], ["c"]), "--checkpoint-dir", self.path("ckpt"),
                         *training.program(step_ms=10))
        training.wait_for_checkpoints(run, self.path("ckpt"), 1)
        kill(self.agent(run, 1))
        wait_for(lambda: len(run.agents()) == 3, 10, lambda: f"b to be back\n{run}")
        # It is the spare now.
        kill(self.agent(run, 2))
        self.assert_code(run.wait(), 0)
        self.assertIn("the spare c takes the ranks of b", run.err)
        self.assertIn("the spare b takes the ranks of c", run.err)
        self.assertIn("finished after 3 attempts", run.err)
        self.assertEqual(Trained(run).steps, training.STEPS)
        # Later runs warn, and use it.
        later = self.launch("-H", "b:1,d:1", "--transport", "local", "true")
        self.assert_code(later, 0)
        self.assertRegex(later.err, r"b failed once in runs of the last day, last at \S+ \S+: .*b")
        self.assertNotIn("d failed", later.err)


class DiscoveryTest(PolicyCase):
    def test_hosts_come_and_go_as_the_script_prints_them(self):
        hosts = self.write("hosts", "a\nb:1\n")
        options = ["--transport", "local", "--host-discovery-script", f"cat {hosts}"]
        run = self.start("-np", "2", *options, "--checkpoint-dir", self.path("ckpt"), "--max-restarts", "0",
                         *training.program(steps=440, step_ms=20))
        training.wait_for_checkpoints(run, self.path("ckpt"), 1)
        self.write("hosts", "c\na\n")
        run.wait_for_text("c stands by as a spare")
        # What it cannot tell now changes nothing.
        os.remove(hosts)
        run.wait_for_text("hosts: No such file or directory; the hosts stay those that it named before")
        self.write("hosts", "c\na\n")
        run.wait_for_text("the spare c takes the ranks of b", 60)
        self.assert_code(run.wait(), 0)
        self.assertRegex(run.err, "b is not listed any more: stopping all ranks within")
        self.assertLessEqual(Trained(run).redone, training.EVERY, str(run))
        # And so it is when the job goes on another time.
        self.write("hosts", "d:2\n")
        self.assertRegex(self.launch("resume", self.path("ckpt"), "--dry-run").out, r"0 +d +0 .*\n1 +d +1 ")

    def test_a_first_list_that_cannot_be_used_is_an_error(self):
        for script, told in (("exit 3", "the discovery script ended with exit code 3"),
                             ("echo a:1", "--np 2: .*1 slot")):
            run = self.launch("-np", "2", "--host-discovery-script", script, "true")
            self.assert_code(run, 2)
            self.assertRegex(run.err, told)
        for words, told in ((["-H", "a,b"], "--host-discovery-script names the hosts, and so does -H"),
                            (["--include", "a"], "which has to choose them itself")):
            run = self.launch(*words, "--host-discovery-script", "echo a", "true")
            self.assert_code(run, 2)
            self.assertIn(told, run.err)


class ReportTest(PolicyCase):
    def test_the_report_says_where_the_time_went(self):
        run = self.start(*self.hosts(["a", "b"]), "--checkpoint-dir", self.path("ckpt"),
                         *training.program(step_ms=20))
        training.wait_for_checkpoints(run, self.path("ckpt"), 2)
        log = wait_for(lambda: glob.glob(self.path("home/state/hvdlaunch/jobs/*/events.jsonl")), 10, "the history")
        folder = os.path.dirname(log[0])
        so_far = self.launch("report", folder)
        self.assert_code(so_far, 0)
        self.assertRegex(so_far.out, r"^no report was left: .*\nattempt 1 started at \S+ s\n$")
        kill(run.workers()[1].pid)
        self.assert_code(run.wait(), 0)
        self.assertRegex(run.err, r"(?m)^hvdlaunch:   1, from \S+ s to \S+ s: rank 1 on b was killed by SIGKILL")
        self.assertRegex(run.err, r"(?m)^hvdlaunch: time: \S+ s, of which \d+ % went into steps that were kept; ")

        printed = self.launch("report", os.path.basename(folder), "--json")
        self.assert_code(printed, 0)
        report = json.loads(printed.out)
        self.assertEqual((report["origin"], report["exit_code"], report["attempts"]), ("hvdlaunch", 0, 2))
        first, second = report["history"]
        self.assertEqual((first["ending"], second["ending"]), ("killed", "well"))
        self.assertGreaterEqual(second["first_step"], 2 * training.EVERY)
        self.assertEqual(first["steps_lost"], first["last_step"] - second["first_step"])
        self.assertEqual(second["last_step"], training.STEPS)
        self.assertGreater(report["goodput"], 0.2, printed.out)
        self.assertLess(report["goodput"], 1, printed.out)
        spent = {name: t for name, t in report["seconds"].items() if name != "unsaved"}
        self.assertAlmostEqual(sum(spent.values()), report["wall_seconds"], delta=0.5)
        self.assertAlmostEqual(sum(sum(one["seconds"].values()) for one in report["history"]),
                               sum(spent.values()), delta=0.01)
        told = self.launch("report", folder)
        self.assert_code(told, 0)
        self.assertIn(run.err[run.err.index("finished after"):].replace("hvdlaunch: ", ""), told.out)

    def test_a_report_that_is_not_there_and_words_it_does_not_know(self):
        for words, code, part in ((["nothing"], 3, "there is no history of a job in"),
                                  ([], 2, "no job is named"), (["a", "b"], 2, "unexpected word 'b'"),
                                  (["--yaml"], 2, "unknown option '--yaml' of report")):
            run = self.launch("report", *words)
            self.assert_code(run, code)
            self.assertIn(part, run.err)


class RulesTest(PolicyCase):
    def test_a_rule_of_the_host_file_ends_the_job(self):
        hosts = self.write("rules.toml", '[[host]]\nname = "a"\n[[job.rule]]\non = "log bad (data|disk)$"\n'
                           'action = "stop"\n')
        run = self.launch("-H", hosts, "--transport", "local", "--checkpoint-dir", self.path("ckpt"), "sh", "-c",
                          "echo $HVD_ATTEMPT; echo bad data >&2; exit 5")
        self.assert_code(run, 5)
        self.assertEqual(lines_of(run.out), [(0, "1")], str(run))
        self.assertIn("by the rule 'log bad (data|disk)$: stop'", run.err)


class StragglerTest(PolicyCase):
    def test_n12_a_slow_rank_is_named_and_left_alone(self):
        run = self.start("-np", "3", "--heartbeat-timeout", "2", *training.program(steps=100_000, step_ms=20))
        slow = run.wait_for_workers(3)[1].pid
        with pulses(slow, still=0.08, awake=0.02):
            run.wait_for_text(r"rank 1 on \S+ is slow: it takes \S+ s of its own for a step, others \S+ s", 60)
        self.assertNotIn("rank 0 on", run.err)
        run.wait_for_text(r"rank 1 on \S+ is as fast as others again", 60)
        kill(run.launcher, signal.SIGTERM)
        self.assert_code(run.wait(), 143)


if __name__ == "__main__":
    main()
