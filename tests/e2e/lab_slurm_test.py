"""Jobs inside an allocation of Slurm: munge, slurmctld and two slurmd of the lab's own, each host with
its daemons and their folders below /root/slurm."""

import hashlib
import os
import secrets
import shutil
import subprocess
import unittest

from harness import LabCase, kill, lines_of, main, needs_lab, wait_for

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "scancel", "sinfo")
MISSING = [t for t in TOOLS if not shutil.which(t, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")]

# Which processors there are is made up. The cgroup plugin is named since slurmd refuses to guess where
# both versions are mounted; none of what would use it is on.
CONFIGURATION = """ClusterName=lab
SlurmctldHost=head
AuthType=auth/munge
AuthInfo=socket=/root/slurm/munge.socket
SlurmUser=root
StateSaveLocation=/root/slurm/state
SlurmdSpoolDir=/root/slurm/spool
SlurmctldPidFile=/root/slurm/slurmctld.pid
SlurmdPidFile=/root/slurm/slurmd.pid
SlurmctldLogFile=/root/slurm/slurmctld.log
SlurmdLogFile=/root/slurm/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=h[1-2] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""
DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd")
FIND_SLURM = {"SLURM_CONF": "/root/slurm/slurm.conf"}


@needs_lab
@unittest.skipIf(MISSING, f"needs {', '.join(MISSING)}: ./dev setup slurm")
class SlurmTest(LabCase):
    hosts = 2

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.addClassCleanup(cls.stop_daemons)
        cls.daemons = []
        key = secrets.token_bytes(128)
        for host in cls.lab.hosts:
            cls.make_folder(host, key)
            cls.start_munge(host)
        cls.daemon("head", "slurmctld", "-D", "-f", "/root/slurm/slurm.conf")
        for host in cls.lab.hosts[1:]:
            cls.start_slurmd(host)

    @classmethod
    def make_folder(cls, host, key):
        folder = f"{cls.lab.state}/hosts/{host}/root/slurm"
        os.makedirs(f"{folder}/state")
        os.makedirs(f"{folder}/spool")
        files = {"slurm.conf": CONFIGURATION.encode(), "cgroup.conf": b"CgroupPlugin=cgroup/v1\n",
                 "munge.key": key}
        for name, content in files.items():
            with open(f"{folder}/{name}", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write(content)

    @classmethod
    def daemon(cls, host, *words):
        cls.daemons.append(cls.lab.popen(host, *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    @classmethod
    def start_munge(cls, host):
        socket = f"{cls.lab.state}/hosts/{host}/root/slurm/munge.socket"
        if os.path.lexists(socket):
            os.unlink(socket)
        at = "/root/slurm/munge"
        cls.daemon(host, "munged", "--foreground", "--force", f"--key-file={at}.key", f"--socket={at}.socket",
                   f"--pid-file={at}.pid", f"--log-file={at}.log", f"--seed-file={at}.seed")
        wait_for(lambda: os.path.exists(socket), 20, f"munged of {host}")

    @classmethod
    def start_slurmd(cls, host):
        cls.daemon(host, "slurmd", "-D", "-f", "/root/slurm/slurm.conf")

    @classmethod
    def stop_daemons(cls):
        for daemon in cls.daemons:
            daemon.kill()
            daemon.wait()

    def setUp(self):
        super().setUp()
        self.allocation = None
        self.addCleanup(self.release)
        wait_for(lambda: "h[1-2] idle" in self.slurm("sinfo", "-h", "-o", "%N %t"), 60,
                 lambda: f"two idle nodes, not {self.slurm('sinfo', '-N', '-l')}")

    def slurm(self, *words):
        with self.lab.popen("head", *words, env=FIND_SLURM, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True) as command:
            return command.communicate(timeout=30)[0]

    def salloc(self, *options, inside=None, **more):
        """Options of start(): hvdlaunch is typed in an allocation of its own, with these variables."""
        variables = [f"{name}={value}" for name, value in (inside or {}).items()]
        return dict(wrap=("salloc", "--quiet", *options, "env", *variables), env=FIND_SLURM, **more)

    def release(self):
        self.slurm("scancel", "--user=root")

    def job_processes(self):
        return [p for p in super().job_processes() if p.name not in DAEMONS]

    def test_ranks_run_where_slurm_says(self):
        run = self.launch("sh", "-c", "echo $HVD_HOST $(hostname) $HVD_LOCAL_RANK/$HVD_LOCAL_SIZE",
                          **self.salloc("-N2", "--ntasks-per-node=2"))
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)),
                         [(0, "h1 h1 0/2"), (1, "h1 h1 1/2"), (2, "h2 h2 0/2"), (3, "h2 h2 1/2")], str(run))
        self.assertEqual(run.err, "")

    def test_tasks_that_differ_by_node_and_options_on_top(self):
        place = ("sh", "-c", "echo $HVD_HOST")
        uneven = self.salloc("-N2", "-n5")
        self.assertEqual([host for _, host in sorted(lines_of(self.launch(*place, **uneven).out))],
                         ["h1"] * 4 + ["h2"])
        run = self.launch("--exclude", "h1", "-np", "1", *place, **uneven)
        self.assertEqual(lines_of(run.out), [(0, "h2")], str(run))
        run = self.launch("-np", "3", "-H", "h2:3", "--transport", "slurm", *place, **uneven)
        self.assertEqual([host for _, host in lines_of(run.out)], ["h2"] * 3, str(run))
        run = self.launch("-np", "9", *place, **uneven)
        self.assert_code(run, 2)

    def test_variables_of_the_step_stay_with_the_agent(self):
        # What a user may have set for srun's of their own must not change ours.
        odd = {"SLURM_CPU_BIND": "verbose,cores", "SLURM_EXPORT_ENV": "NONE", "SLURM_OVERLAP": "0",
               "SLURM_LABELIO": "1", "SLURM_UNBUFFEREDIO": "0", "SLURM_HINT": "nomultithread",
               "SLURM_EXACT": "1", "SLURM_STDINMODE": "none", "SLURM_EXCLUSIVE": "1"}
        run = self.launch("--no-prefix", "env", **self.salloc("-N1", "-n1", inside=odd))
        self.assert_code(run, 0)
        names = {line.partition("=")[0] for line in run.out.split("\n")}
        self.assertIn("SLURM_JOB_ID", names)
        leaked = [n for n in names if n.startswith(("SLURM_STEP", "SLURM_SRUN", "SRUN_", "SLURM_TOPOLOGY"))]
        self.assertEqual(leaked, [])
        self.assertFalse(names & {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS",
                                  "SLURM_TASK_PID", "SLURMD_NODENAME", "SLURM_GTIDS"})

    def test_in_a_step_of_the_job(self):
        job = ("--quiet", "-N2", "--ntasks-per-node=2")
        run = self.launch("sh", "-c", "echo $HVD_HOST ${SLURM_PROCID-none}", env=FIND_SLURM,
                          wrap=("salloc", *job, "srun", "-N1", "-n1", "-w", "h2"))
        self.assert_code(run, 0)
        self.assertEqual(sorted(lines_of(run.out)),
                         [(0, "h1 none"), (1, "h1 none"), (2, "h2 none"), (3, "h2 none")], str(run))
        run = self.launch("true", env=FIND_SLURM, wrap=("salloc", *job, "srun", "-n2"))
        self.assertIn("srun starts hvdlaunch '2' times", run.err)

    def test_a_rank_that_is_killed_tells_its_code(self):
        fails = 'test $RANK != 2 || exit 7; test $RANK != 3 || kill -9 $$; sleep 1000'
        with_code = self.salloc("-N2", "--ntasks-per-node=2")
        self.assert_code(self.launch("sh", "-c", fails.replace("kill -9 $$", ":"), **with_code), 7)
        run = self.launch("sh", "-c", fails.replace("exit 7", ":"), **with_code)
        self.assert_code(run, 128 + 9)
        self.assertIn("rank 3 on h2", run.err)

    def test_every_byte_goes_through(self):
        with open("/usr/bin/srun", "rb") as f:
            content = f.read()
            f.seek(0)
            run = self.launch("--no-prefix", "--stdin", "0", "cat", **self.salloc("-N1", "-n1", stdin=f))
        self.assert_code(run, 0)
        self.assertEqual(hashlib.sha256(run.raw_out).hexdigest(), hashlib.sha256(content).hexdigest())

    def test_scancel_ends_all(self):
        run = self.start("sh", "-c", "trap 'echo saved; exit 5' TERM; echo ready; sleep 1000 & wait",
                         **self.salloc("-N2", "--ntasks-per-node=1"))
        wait_for(lambda: len(lines_of(run.out)) == 2, 30, lambda: f"two ranks\n{run}")
        self.release()
        self.assertNotEqual(run.wait(40).code, 0, str(run))
        self.assertIn("saved", [line for _, line in lines_of(run.out)], str(run))
        self.assert_nothing_left(20)

    def sockets(self, host):
        return self.lab.output(host, "sh", "-c", "ls -d /dev/shm/hvdlaunch-* 2>&- || true").split()

    def test_g7_what_a_killed_step_leaves_is_swept_by_the_next(self):
        # When an srun is killed Slurm kills its step at once, agent and keeper included: nobody is there
        # to remove their sockets, which say by their lock that they are nobody's.
        run = self.start("--heartbeat-timeout", "2", "sleep", "1000", **self.salloc("-N2", "--ntasks-per-node=1"))
        run.wait_for_workers(2)
        kill(run.launcher)
        wait_for(lambda: not self.job_processes(), 20, lambda: f"no process but {self.job_processes()}")
        self.release()
        # The next agents have one folder of their own, and sweep once their jobs have run for a while.
        until_swept = "until [ $(ls -d /dev/shm/hvdlaunch-* | wc -l) = 1 ]; do sleep 0.05; done"
        run = self.launch("timeout", "20", "sh", "-c", until_swept, **self.salloc("-N2", "--ntasks-per-node=1"))
        self.assert_code(run, 0)
        self.assertEqual([self.sockets(host) for host in self.lab.hosts[1:]], [[], []])

    def test_outside_of_an_allocation(self):
        run = self.launch("--transport", "slurm", "-H", "h1:1", "true")
        self.assert_code(run, 2)
        self.assertIn("--transport slurm: this is no allocation of Slurm", run.err)

    # The last by its name: the node stays down afterwards for as long as Slurm likes.
    def test_z_a_host_that_is_cut_off_is_lost(self):
        run = self.start("--heartbeat-timeout", "2", "sleep", "1000",
                         **self.salloc("-N2", "--ntasks-per-node=1", "--no-kill"))
        run.wait_for_workers(2)
        self.lab("cut", "h2")
        self.addCleanup(self.lab, "heal", "h2")
        run.wait(20)
        self.assert_code(run, 70)
        self.assertRegex(run.err, r"h2 has not been heard for [2-9](\.\d+)? s")
        self.lab("heal", "h2")
        self.release()
        self.assert_nothing_left(30)


if __name__ == "__main__":
    main()
