"""Addresses and ports of the data plane on real hosts: which address ranks are reached at, whatever
cards, names and hosts files say; no fixed port; what is told where hosts do not reach each other."""

import os
import subprocess
import time
import unittest

from harness import BUILD, PROGRAMS, PYTHON, SLOWNESS, TRAIN, LabCase, Trained, lines_of, main, needs_lab, not_run

MEETING = os.path.join(PROGRAMS, "meeting.py")
WORKER = os.path.join(BUILD, "tests", "agent", "agent_test_worker")
# Says where rank 0 is and which card it was given, meets as torch does, then trains over libhvdcomm.
WORK = ["sh", "-c", 'echo at $(hostname) $MASTER_ADDR $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME $HOROVOD_GLOO_IFACE'
        f' && {PYTHON} {MEETING} && exec {TRAIN} --steps 2']


@needs_lab
class AddressTest(LabCase):
    hosts = 4

    def address(self, host):
        return "10.77.0.1" if host == "head" else f"10.77.0.{10 + int(host[1:])}"

    def card(self, host, name, address):
        self.lab("card", host, name, address)
        self.addCleanup(self.lab, "uncard", host, name)

    def wall(self, host, *others):
        for other in others:
            self.lab("wall", host, self.address(other))
        self.addCleanup(self.lab, "unwall", host)

    def hosts_line(self, host, line):
        """A line at the top of the host's /etc/hosts, for this test."""
        path = f"{self.lab.state}/hosts/{host}/hosts"
        with open(path) as f:
            before = f.read()

        def write(text):
            with open(path, "w") as f:
                f.write(text)

        self.addCleanup(write, before)
        write(line + "\n" + before)

    def works(self, spec, size, on="head"):
        """Ranks of these hosts meet and train together. Gives what each said of its place."""
        run = self.launch("-np", str(size), "-H", spec, *WORK, host=on)
        self.assert_code(run, 0)
        self.assertEqual(Trained(run).steps, 2)
        self.assertRegex(run.out, rf"met {size} at ")
        return [line.split()[1:] for _, line in sorted(lines_of(run.out)) if line.startswith("at ")]

    def test_c1_names_do_not_matter(self):
        self.lab.output("h1", "hostname", "x")
        self.addCleanup(self.lab.output, "h1", "hostname", "h1")
        for spec in ("10.77.0.11:1,10.77.0.12:1", "h1:1,h2:1"):
            self.assertEqual([p[:2] for p in self.works(spec, 2)],
                             [["x", "10.77.0.11"], ["h2", "10.77.0.11"]])

    def test_c2_c3_cards_that_lead_nowhere(self):
        for number, host in enumerate(("h1", "h2"), 1):
            self.card(host, "docker0", "172.17.0.1/16")
            self.card(host, "veth9", f"10.99.0.{number}/24")
        started = time.monotonic()
        places = self.works("h1:1,h2:1", 2)
        self.assertEqual(places, [["h1", "10.77.0.11"] + ["eth0"] * 3, ["h2", "10.77.0.11"] + ["eth0"] * 3])
        self.assert_within(started, 10)
        # Where the launcher's own way is of no use to ranks, another is, and no card's name decides it.
        for number, host in enumerate(("h1", "h2"), 1):
            self.lab.output(host, "ip", "addr", "add", f"10.88.0.{number}/24", "dev", "eth0", "label", "eth0:data")
            self.addCleanup(self.lab.output, host, "ip", "addr", "del", f"10.88.0.{number}/24", "dev", "eth0")
            self.wall(host, "h2" if host == "h1" else "h1")
        places = self.works("h1:1,h2:1", 2)
        self.assertEqual([p[1] for p in places], ["10.88.0.1"] * 2)
        self.assertEqual(places[0][3:], ["eth0:data"] * 2)

    def test_c3_the_users_own_card_is_kept(self):
        run = self.launch("-np", "2", "-H", "h1:1,h2:1", "-x", "GLOO_SOCKET_IFNAME=mine", "sh", "-c",
                          "echo $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME",
                          env={"NCCL_SOCKET_IFNAME": "^docker,lo"})
        self.assertEqual(sorted(lines_of(run.out)), [(0, "^docker,lo mine"), (1, "^docker,lo mine")])

    def test_c4_own_names_that_mean_loopback(self):
        for host in ("head", "h1", "h2"):
            self.hosts_line(host, f"127.0.1.1 {host}")
        self.assertEqual([p[1] for p in self.works("h1:1,h2:1", 2)], ["10.77.0.11"] * 2)
        # Seen from h1, h1 is at 127.0.1.1.
        self.assertEqual([p[1] for p in self.works("h1:1,h2:1", 2, on="h1")], ["10.77.0.11"] * 2)

    def test_c5_own_names_and_addresses(self):
        for own in ("h1", "10.77.0.11", "localhost", "127.0.0.1"):
            run = self.launch("-H", f"{own}:1", "hostname", host="h1")
            self.assert_code(run, 0)
            self.assertEqual(lines_of(run.out), [(0, "h1")])
        self.assertEqual([p[0] for p in self.works("10.77.0.11:1,h2:1", 2, on="h1")], ["h1", "h2"])

    def test_c6_localhost_beside_remote_hosts(self):
        for spec in ("10.77.0.12:1,localhost:1", "localhost:1,10.77.0.12:1"):
            places = self.works(spec, 2)
            self.assertEqual(sorted(p[0] for p in places), ["h2", "head"])
            first = "10.77.0.12" if spec.startswith("10.") else "10.77.0.1"
            self.assertEqual([p[1] for p in places], [first] * 2)

    def test_c8_jobs_side_by_side(self):
        taken = self.lab.popen("h1", PYTHON, "-c", "import socket, time\n"
                               "s = socket.create_server(('', 29500))\nprint('taken', flush=True)\n"
                               "time.sleep(100)", stdout=subprocess.PIPE)
        self.addCleanup(taken.communicate)
        self.addCleanup(taken.kill)
        self.assertEqual(taken.stdout.readline(), b"taken\n")
        runs = [self.start("-np", "4", "-H", "h1:2,h2:2", *WORK) for _ in range(5)]
        results = set()
        for run in runs:
            self.assert_code(run.wait(60), 0)
            self.assertIn("met 4 at", run.out)
            results.add(Trained(run).sha256)
        self.assertEqual(len(results), 1)
        taken.kill()
        taken.wait()

    def test_c8_a_taken_port_is_never_told(self):
        usual = self.lab.output("h3", "cat", "/proc/sys/net/ipv4/ip_local_port_range").strip()
        few = "import sys\nopen('/proc/sys/net/ipv4/ip_local_port_range', 'w').write(sys.argv[1])"
        self.addCleanup(self.lab.output, "h3", PYTHON, "-c", few, usual)
        self.lab.output("h3", PYTHON, "-c", few, "40000 40004")
        taken = self.lab.popen("h3", PYTHON, "-c", "import socket, sys\n"
                               "held = [socket.create_server(('', 40000 + n)) for n in (0, 1, 2)]\n"
                               "print('taken', flush=True)\nsys.stdin.readline()\n"
                               "held += [socket.create_server(('', 40000 + n)) for n in (3, 4)]\n"
                               "print('all', flush=True)\nsys.stdin.readline()",
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(taken.communicate)
        self.addCleanup(taken.kill)
        self.assertEqual(taken.stdout.readline(), b"taken\n")
        run = self.launch("-H", "h3:1", "sh", "-c", "echo $MASTER_PORT")
        self.assert_code(run, 0)
        self.assertIn(lines_of(run.out), [[(0, "40003")], [(0, "40004")]])
        taken.stdin.write(b"\n")
        taken.stdin.flush()
        self.assertEqual(taken.stdout.readline(), b"all\n")
        run = self.launch("-H", "h3:1", "true")
        self.assert_code(run, 69)
        self.assertIn("cannot reserve a TCP port: Address already in use", run.err)

    def test_c9_a_thousand_ranks_register(self):
        each = 250 // SLOWNESS
        if each < 250:
            not_run(self, "too much for a build with sanitizers", f"with more than {4 * each} ranks")
        started = time.monotonic()
        run = self.start("-np", f"{4 * each}", "--no-prefix", "-H", ",".join(f"h{n}:{each}" for n in range(1, 5)),
                         WORKER, "join", "exchange-all", "finalize")
        most = 0
        while run.running and time.monotonic() - started < 60:
            rows = [line.split() for line in self.lab.output("head", "cat", "/proc/net/tcp").split("\n")[1:-1]]
            most = max(most, sum(r[3] == "01" for r in rows))
        self.assert_code(run.wait(30), 0)
        took = time.monotonic() - started
        self.assertEqual(run.out.count(f"all {4 * each} there"), 4 * each)
        self.assertEqual(most, 4)
        self.assertLess(took, 20)
        print(f"{4 * each:,} ranks over 4 hosts: {took:.1f} s", flush=True)

    def test_c10_closed_ports_are_named(self):
        self.wall("h1", "h2")
        self.wall("h2", "h1")
        self.assertEqual(self.lab.output("h1", "ssh", "-o", "BatchMode=yes", "h2", "hostname"), "h2\n")
        started = time.monotonic()
        run = self.launch("-np", "3", "-H", "h1:1,h2:1,h3:1", "touch", "/srv/lab/started")
        self.assert_code(run, 69)
        self.assert_within(started, 15)
        self.assertRegex(run.err, r"h1 -> h2 at 10\.77\.0\.12:\d+ \(eth0\): no answer within 5 s")
        self.assertRegex(run.err, r"h2 -> h1 at 10\.77\.0\.11:\d+ \(eth0\): no answer within 5 s")
        self.assertNotRegex(run.err, "h3 ->|-> h3")
        self.assertFalse(os.path.exists(f"{self.lab.shared}/started"))
        # Those that reach each other work, and one host needs nobody.
        self.works("h2:1,h3:1", 2)
        self.assert_code(self.launch("-np", "2", "-H", "h1:2", "true"), 0)


if __name__ == "__main__":
    main()
