"""What the end-to-end tests share: starting hvdlaunch, finding the processes of a job, waiting for
conditions, and looking for leftovers after every test.

On this machine every launch runs under supervise.py, a child subreaper, so "nothing is left" is one
look at its descendants. In a lab it is one look at everything in the hosts' PID namespaces.
"""

import atexit
import contextlib
import fcntl
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.realpath(os.environ.get("HVD_BUILD", os.path.join(TREE, "build")))
HVDLAUNCH = os.path.join(BUILD, "hvdlaunch")
TRAIN = os.path.join(BUILD, "examples", "train_digits")
PROGRAMS = os.path.join(HERE, "programs")
LAB = os.path.join(TREE, "tests", "lab", "lab")
PYTHON = "/usr/bin/python3"

# Many ranks on a machine with one GPU are no mistake of a test: they see none.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# No launch of these tests takes longer than this, however loaded the machine is.
OUTER_TIMEOUT = 120


def is_sanitized():
    """The build under test has the sanitizers in it."""
    with open(os.path.join(BUILD, "CMakeCache.txt")) as f:
        return "HVD_SANITIZE:BOOL=ON\n" in f


SANITIZED = is_sanitized()
# All times that tests set are for a plain build. Code of the other is up to a hundred times as slow
# where it goes through bytes, and a few times where it starts processes.
SLOWNESS = 5 if SANITIZED else 1
plain_build_only = lambda why: unittest.skipIf(SANITIZED, f"not in a build with sanitizers: {why}")


def wait_for(condition, seconds, what):
    """Returns condition()'s first true value; fails after so many seconds of a plain build, naming
    `what` (a text, or a function that gives one)."""
    seconds *= SLOWNESS
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what() if callable(what) else what}")
        time.sleep(0.01)


# ---- processes ----


class Process:
    """One line of /proc, as it was when looked at."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/stat", "rb") as f:
            text = f.read().decode(errors="replace")
        name, rest = text[text.index("(") + 1 :].rsplit(") ", 1)
        fields = rest.split()
        self.pid, self.name, self.state, self.ppid = pid, name, fields[0], int(fields[1])

    @property
    def alive(self):
        return self.state not in "ZX"

    @property
    def still(self):
        """Stopped, or a vfork's parent whose child is (D)."""
        return self.state in "TD"

    def argv(self):
        return [a.decode(errors="replace") for a in _read(self.pid, "cmdline").split(b"\0")[:-1]]

    def environment(self):
        pairs = (v.partition(b"=") for v in _read(self.pid, "environ").split(b"\0") if v)
        return {n.decode(errors="replace"): v.decode(errors="replace") for n, _, v in pairs}

    def __repr__(self):
        return f"{self.pid} ({self.name}, parent {self.ppid}, {self.state}): {' '.join(self.argv())[:200]}"


def _read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as f:
            return f.read()
    except OSError:
        return b""


def processes():
    """Every process of this machine, by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found[int(name)] = Process(int(name))
            except (OSError, ValueError):
                pass
    return found


def descendants(root):
    """Living descendants of a process."""
    everyone = processes()
    children = {}
    for p in everyone.values():
        children.setdefault(p.ppid, []).append(p)
    found, todo = [], [root]
    while todo:
        for p in children.get(todo.pop(), []):
            found.append(p)
            todo.append(p.pid)
    return [p for p in found if p.alive]


def is_alive(pid):
    try:
        return Process(pid).alive
    except (OSError, ValueError):
        return False


def is_listener(p):
    # A connection's sshd that outlives the listener has its parent too.
    return p.name == "sshd" and "[listener]" in " ".join(p.argv())


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)


def cgroup_root():
    """This process's own cgroup of version 2 if groups can be made in it, or nothing."""
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if os.path.exists(f"{root}/cgroup.procs") and os.path.exists(f"{root}/cgroup.controllers"):
            with open("/proc/self/cgroup") as f:
                own = next((l[3:].strip() for l in f if l.startswith("0::/")), "/")
            path = root + own.rstrip("/")
            return path if os.access(path, os.W_OK) else None
    return None


def unlocked_folders(pattern):
    """Folders of jobs that nobody alive locks, at these paths; other tests may run their own."""
    found = set()
    for path in glob.glob(pattern):
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
            found.add(path)
        except OSError:
            pass
        finally:
            os.close(folder)
    return found


def dead_cgroups():
    """Groups of jobs with nobody in them who locks them."""
    root = cgroup_root()
    return sorted(unlocked_folders(f"{root}/hvdlaunch-*")) if root else []


# ---- the lab ----


def lab_refusal():
    """Why no lab can run here, or an empty string."""
    probe = subprocess.run([LAB, "able"], stderr=subprocess.PIPE, text=True)
    return "" if probe.returncode == 0 else probe.stderr.strip()


_LAB_REFUSAL = None


def needs_lab(case):
    global _LAB_REFUSAL
    if _LAB_REFUSAL is None:
        _LAB_REFUSAL = lab_refusal()
    return unittest.skipIf(_LAB_REFUSAL, _LAB_REFUSAL)(case)


class Lab:
    """Hosts head and h1..hN for the life of this process at most."""

    _count = 0

    def __init__(self, hosts, owner=None):
        Lab._count += 1
        self.name = f"hvd{os.getpid()}-{Lab._count}"
        self.state = f"/var/tmp/{self.name}"
        self.shared = f"{self.state}/shared"  # /srv/lab of every host, seen from outside
        self.hosts = ["head"] + [f"h{i + 1}" for i in range(hosts)]
        self._environment = dict(os.environ, LAB_NAME=self.name, LAB_OWNER=str(owner or os.getpid()))
        atexit.register(self.down)
        self("up", str(hosts))

    def __call__(self, *words):
        done = subprocess.run(
            [LAB, *words], env=self._environment, text=True, timeout=60,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise AssertionError(f"lab {' '.join(words)}: {done.stderr}")
        return done.stdout

    def down(self):
        atexit.unregister(self.down)
        self("down")

    def popen(self, host, *argv, env=None, cwd="/root", **options):
        environment = dict(self._environment, LAB_WD=cwd, **(env or {}))
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([LAB, "exec", host, *argv], env=environment, **options)

    def output(self, host, *argv, text=True):
        done = subprocess.run([LAB, "exec", host, *argv], env=self._environment, text=text, timeout=60,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
        return done.stdout

    def add_addresses(self, host, count):
        """So many addresses of one host, all behind its sshd, which head knows by them; may be called
        again for more. Returns them."""
        addresses = [f"10.77.{50 + i // 200}.{1 + i % 200}" for i in range(count)]
        batch = "".join(f"addr replace {address}/16 dev eth0\n" for address in addresses)
        self.output(host, "bash", "-c", f"ip -batch - <<'END'\n{batch}END")
        with open(f"{self.state}/hostkey.pub") as f:
            key = " ".join(f.read().split()[:2])
        with open(f"{self.state}/hosts/head/root/.ssh/known_hosts", "r+") as f:
            line = f"10.77.5?.* {key}\n"
            if line not in f.read():
                f.write(line)
        return addresses

    def is_on(self, host):
        return self._first(host) is not None

    def _first(self, host):
        try:
            with open(f"{self.state}/hosts/{host}/pid") as f:
                pid = int(f.read())
        except (OSError, ValueError):
            return None
        return pid if is_alive(pid) else None

    def processes(self, host):
        """Living processes of a host beside its own: init, its sleep, and the listening sshd."""
        first = self._first(host)
        if first is None:
            return []
        return [p for p in self._all(first)
                if p.pid != first and not (p.ppid == first and (p.name == "sleep" or is_listener(p)))]

    def listener(self, host):
        """The sshd of a host that waits for connections, or None."""
        first = self._first(host)
        return next((p for p in self._all(first) if is_listener(p)), None) if first else None

    def start_sshd(self, host):
        """Again, where it was killed."""
        if self.listener(host) is None:
            self.output(host, "sh", "-c", f"/usr/sbin/sshd -f {self.state}/sshd_config -E /root/sshd.log "
                                          "</dev/null >/dev/null 2>&1")

    @staticmethod
    def _all(first):
        """Living processes in the PID namespace of a process."""
        space = os.readlink(f"/proc/{first}/ns/pid")
        found = []
        for p in processes().values():
            with contextlib.suppress(OSError):
                if p.alive and os.readlink(f"/proc/{p.pid}/ns/pid") == space:
                    found.append(p)
        return found

    def leftover_files(self, host):
        """Files and sockets of a job on a host that is on."""
        look = ("find /tmp /run /dev/shm -mindepth 1 -not -path '/run/sshd';"
                "grep -a hvdlaunch /proc/net/unix; find /sys/fs/cgroup -name 'hvdlaunch-*' 2>/dev/null; true")
        return self.output(host, "bash", "-c", look).split("\n")[:-1]


# ---- launches ----


class Supervised:
    """A command under supervise.py."""

    def __init__(self, command, **options):
        self._report, report = os.pipe()
        os.set_blocking(self._report, False)
        argv = [PYTHON, os.path.join(HERE, "supervise.py"), str(report), *command]
        self._popen = subprocess.Popen(argv, pass_fds=[report], **options)
        os.close(report)
        self._told = b""
        self.pid = int(wait_for(lambda: self._find(rb"pid (\d+)\n"), 10, "supervise.py to start"))

    def _find(self, pattern):
        try:
            self._told += os.read(self._report, 4096) if self._report >= 0 else b""
        except BlockingIOError:
            pass
        found = re.search(pattern, self._told)
        return found and found[1]

    def poll(self):
        """The command's exit code as a shell gives it, or None while it runs."""
        code = self._find(rb"code (\d+)\n")
        return None if code is None else int(code)

    def processes(self):
        """What lives of the command and of everything it started."""
        return descendants(self._popen.pid)

    def end(self):
        """Kills whatever is left; may be repeated."""
        while self._popen.poll() is None:
            for p in self.processes():
                try:
                    kill(p.pid)
                except ProcessLookupError:
                    pass
            try:
                self._popen.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
        self.poll()
        if self._report >= 0:
            os.close(self._report)
            self._report = -1


class InLab:
    """A command on a lab host, with the interface of Supervised."""

    def __init__(self, lab, host, command, **options):
        self._popen = lab.popen(host, *command, start_new_session=True, **options)

    def poll(self):
        code = self._popen.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def pid(self):
        # nsenter replaced the lab's shell; its child is the command.
        child = lambda: next((p for p in descendants(self._popen.pid) if p.name == "hvdlaunch"), None)
        return wait_for(child, 10, "the launcher to start").pid

    def end(self):
        self._popen.kill()
        self._popen.wait()


class Run:
    """One hvdlaunch, started and perhaps ended. Its output goes to files, so it never blocks."""

    def __init__(self, command, folder, look):
        self.command, self.folder, self._pids = command, folder, look

    @property
    def out(self):
        return self.raw_out.decode(errors="replace")

    @property
    def err(self):
        return self._content("err").decode(errors="replace")

    @property
    def raw_out(self):
        return self._content("out")

    def _content(self, name):
        with open(os.path.join(self.folder, name), "rb") as f:
            return f.read()

    @property
    def running(self):
        return self.code is None

    @property
    def code(self):
        """The exit code as a shell gives it; None while it runs."""
        return self.command.poll()

    @property
    def launcher(self):
        """Pid of the launcher itself."""
        return self.command.pid

    def wait(self, seconds=OUTER_TIMEOUT):
        """Waits for the end and returns this; past the time it says what it saw."""
        wait_for(lambda: not self.running, seconds, lambda: f"hvdlaunch to end\n{self}")
        return self

    def workers(self):
        """Main process of each rank, by rank, now."""
        ranks = {}
        for p in self._pids():
            environment = p.environment()
            if "HVD_RANK" in environment and "HVD_JOB_ID" in environment:
                ranks.setdefault(int(environment["HVD_RANK"]), {})[p.pid] = p
        return {r: next(p for p in group.values() if p.ppid not in group) for r, group in ranks.items()}

    def wait_for_workers(self, count, seconds=30):
        def all_there():
            if not self.running:
                raise AssertionError(f"ended before there were {count} workers\n{self}")
            workers = self.workers()
            return workers if len(workers) == count else None

        return wait_for(all_there, seconds, lambda: f"{count} workers\n{self}")

    def agents(self, host=None):
        """(keeper, agent) pairs, on one lab host or everywhere."""
        parts = {p.pid: p for p in self._pids(host) if is_agent(p)}
        return [(parts[p.ppid], p) for p in parts.values() if p.ppid in parts]

    def wait_for_text(self, pattern, seconds=30):
        """Waits until a regular expression is found in standard output or error."""
        return wait_for(lambda: re.search(pattern, self.out) or re.search(pattern, self.err),
                        seconds, lambda: f"'{pattern}' to be written\n{self}")

    def __str__(self):
        return (f"exit code: {self.code}\nstdout:\n{self.out[-6000:]}\nstderr:\n{self.err[-6000:]}\n"
                f"processes: {self._pids()}")


def is_agent(p):
    argv = p.argv()
    return len(argv) > 1 and argv[1] == "agent" and "HVD_RANK" not in p.environment()


@contextlib.contextmanager
def _outputs(folder):
    with open(os.path.join(folder, "out"), "wb") as out, open(os.path.join(folder, "err"), "wb") as err:
        yield out, err


class Case(unittest.TestCase):
    """Tests on this machine. Every launch has a home, a runtime folder and a folder for temporary
    files of its own, which must be clean afterwards."""

    maxDiff = None

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="e2e-")
        self.runs = []
        for name in ("home", "run", "tmp"):
            os.mkdir(os.path.join(self.dir, name), 0o700)
        self.addCleanup(self._end)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def environment(self):
        keep = {n: v for n, v in os.environ.items() if not n.startswith(("HVD_", "XDG_"))}
        return dict(keep, XDG_RUNTIME_DIR=self.path("run"), TMPDIR=self.path("tmp"),
                    XDG_STATE_HOME=self.path("home/state"), XDG_CACHE_HOME=self.path("home/cache"))

    def start(self, *args, env=None, cwd=None, stdin=subprocess.DEVNULL, around=(), program=HVDLAUNCH,
              **options):
        """Starts hvdlaunch with these arguments; `around` are words before it that exec it."""
        folder = tempfile.mkdtemp(prefix="launch-", dir=self.dir)
        environment = self.environment()
        for key, value in (env or {}).items():
            environment.pop(key, None)
            if value is not None:
                environment[key] = value
        with _outputs(folder) as (out, err):
            command = Supervised([*around, program, *args], env=environment, cwd=cwd or self.dir,
                                 **dict(stdin=stdin, stdout=out, stderr=err) | options)
        run = Run(command, folder, lambda host=None: command.processes())
        self.runs.append(run)
        return run

    def launch(self, *args, timeout=OUTER_TIMEOUT, **options):
        """Runs hvdlaunch to its end."""
        return self.start(*args, **options).wait(timeout)

    def job_processes(self):
        return [p for run in self.runs for p in run.command.processes()]

    def clean_up(self):
        """After a failure: what a test must not leave to the next."""

    def assert_code(self, run, code):
        self.assertEqual(run.code, code, str(run))

    def assert_within(self, started, seconds):
        """It was at most so many seconds of a plain build ago."""
        self.assertLess(time.monotonic() - started, seconds * SLOWNESS)

    def assert_nothing_left(self, seconds=10):
        """No process and no file of any launch of this test is there, soon."""
        wait_for(lambda: not self.leftovers(), seconds,
                 lambda: f"nothing to be left but {self.leftovers()}")

    def leftovers(self):
        left = [repr(p) for p in self.job_processes()]
        for folder in ("run", "tmp"):
            left += [f"{folder}/{name}" for name in os.listdir(self.path(folder))]
        return left + self.job_sockets() + dead_cgroups()

    def job_sockets(self):
        """The locks of agents in the abstract space, of launches of this test."""
        jobs = glob.glob(self.path("home*/state/hvdlaunch/jobs/*"))
        with open("/proc/net/unix") as f:
            names = [l.split()[-1] for l in f if "@hvdlaunch-" in l]
        return [n for n in names if any(os.path.basename(j) in n for j in jobs)]

    def _end(self):
        try:
            self.assert_nothing_left()
        finally:
            for run in self.runs:
                run.command.end()
            self.clean_up()
            shutil.rmtree(self.dir, ignore_errors=True)


class LabCase(Case):
    """Tests on a lab of their class: `hosts` lab hosts, hvdlaunch typed on head."""

    hosts = 4

    @classmethod
    def setUpClass(cls):
        cls.lab = Lab(cls.hosts)

    @classmethod
    def tearDownClass(cls):
        cls.lab.down()

    def setUp(self):
        super().setUp()
        for host in self.lab.hosts:
            if not self.lab.is_on(host):
                self.lab("boot", host)
        for name in os.listdir(self.lab.shared):  # the folder itself is mounted in the hosts
            shutil.rmtree(os.path.join(self.lab.shared, name))

    def replace(self, path, content):
        """Changes a file of a host for this test, in place: it may be mounted. Returns what was there."""
        with open(path) as f:
            before = f.read()

        def restore():
            with open(path, "w") as f:
                f.write(before)

        self.addCleanup(restore)
        with open(path, "w") as f:
            f.write(content)
        return before

    def host_file(self, hosts, slots, spares=()):
        """A host file for head; returns its path there."""
        text = f"[defaults]\nslots = {slots}\n"
        for name in hosts:
            text += f'[[host]]\nname = "{name}"\n'
        for name in spares:
            text += f'[[host]]\nname = "{name}"\nspare = true\n'
        with open(f"{self.lab.state}/hosts/head/root/hosts.toml", "w") as f:
            f.write(text)
        return "/root/hosts.toml"

    def start(self, *args, env=None, cwd="/root", host="head", wrap=(), **options):
        """Starts hvdlaunch on a host of the lab, by way of the words of `wrap`."""
        folder = tempfile.mkdtemp(prefix="launch-", dir=self.dir)
        with _outputs(folder) as (out, err):
            command = InLab(self.lab, host, [*wrap, HVDLAUNCH, *args], env=env, cwd=cwd,
                            **dict(stdout=out, stderr=err) | options)
        run = Run(command, folder, self._pids_on)
        self.runs.append(run)
        return run

    def _pids_on(self, host=None):
        return [p for h in ([host] if host else self.lab.hosts) for p in self.lab.processes(h)]

    def job_processes(self):
        return self._pids_on()

    def clean_up(self):
        for p in self.job_processes():
            try:
                kill(p.pid)
            except ProcessLookupError:
                pass
        for host in self.lab.hosts:
            if self.lab.is_on(host):
                self.lab.output(host, "sh", "-c", "rm -rf /tmp/* /dev/shm/*")

    def leftovers(self):
        left = [repr(p) for p in self.job_processes()]
        for host in self.lab.hosts:
            if self.lab.is_on(host):
                left += [f"{host}: {line}" for line in self.lab.leftover_files(host)]
        return left


# ---- results ----

RESULT = re.compile(r"steps=(\d+) resumed_at=(\d+) redone=(\d+) accuracy=([\d.]+) sha256=([0-9a-f]{64})")


class Trained:
    """The last line of train_digits."""

    def __init__(self, run):
        found = RESULT.findall(run.out)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} result lines of train_digits\n{run}")
        steps, resumed_at, redone, accuracy, self.sha256 = found[0]
        self.steps, self.resumed_at, self.redone = int(steps), int(resumed_at), int(redone)
        self.accuracy = float(accuracy)


def committed_steps(folder):
    """Steps with a manifest in a checkpoint folder, in order."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    steps = [re.fullmatch(r"step-(\d+)", n) for n in names]
    return sorted(int(m[1]) for m in steps
                  if m and os.path.exists(os.path.join(folder, m[0], "manifest.json")))


def lines_of(text, rank=None):
    """Worker lines without their prefix; of one rank, or (rank, text) of all."""
    found = re.findall(r"^(\d+)@[^:\n]+: (.*)$", text, re.M)
    if rank is None:
        return [(int(r), line) for r, line in found]
    return [line for r, line in found if int(r) == rank]


# ---- main ----


def not_run(test, reason, part=""):
    """Says that a test, or a part of it, was not run."""
    name = " ".join((os.path.basename(sys.argv[0]), test.id().removeprefix("__main__."), part)).rstrip()
    print(f"\nNOT RUN: {name}: {reason}", flush=True)


@contextlib.contextmanager
def own_cgroup():
    """Groups of jobs are made in that of whoever launches: in one of this process's own, they are not
    taken for those of others who test at the same time."""
    root = cgroup_root() if os.geteuid() == 0 else None
    own = f"{root}/hvd-test-{os.getpid()}"
    if root:
        os.mkdir(own)
        join_cgroup(own)
    try:
        yield
    finally:
        if root:
            join_cgroup(root)
            for left in glob.glob(f"{own}/*/"):  # by a test that failed for it
                os.rmdir(left)
            os.rmdir(own)


def join_cgroup(path):
    with open(f"{path}/cgroup.procs", "w") as f:
        f.write("0")


def main():
    """As unittest.main; every test that could not run is named on a line of its own that begins
    with NOT RUN, and a file none of whose tests could run exits with 77."""
    with own_cgroup():
        program = unittest.main(module="__main__", exit=False, verbosity=2)
    result = program.result
    for test, reason in result.skipped:
        not_run(test, reason)
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.skipped and len(result.skipped) == result.testsRun else 0)
