"""How long it takes to start and end a job that does nothing, beside mpiexec.hydra (MPICH) and
mpirun (Open MPI): on this machine, and on four hosts of the lab over SSH, where four plain libssh
connections opened in parallel are the measure of what cannot be beaten by much."""

import os
import shutil
import sys

from common import Report, interleaved, quiet
from harness import BUILD, HVDLAUNCH, LAB, Lab, lab_refusal

LOCAL_ROUNDS = int(os.environ.get("BENCH_ROUNDS", "30"))
LOCAL_RANKS = (1, 4, 64)
# On two cores Debian 12's Open MPI hangs in some of the runs with many ranks.
MPIRUN_MAY_HANG_FROM = 64
LAB_ROUNDS = max(LOCAL_ROUNDS // 3, 1)
HOSTS = "h1,h2,h3,h4"
FLOOR = os.path.join(BUILD, "tests", "bench", "ssh_floor")


def open_mpi():
    path = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    return [path, "--allow-run-as-root", "--oversubscribe"]


def local(report, ranks):
    environment = dict(os.environ, OMPI_MCA_btl_vader_single_copy_mechanism="none")
    runs = {
        "hvdlaunch": quiet(HVDLAUNCH, "-np", str(ranks), "/bin/true"),
        "mpiexec.hydra": quiet("mpiexec.hydra", "-n", str(ranks), "/bin/true"),
    }
    if ranks < MPIRUN_MAY_HANG_FROM:
        runs["mpirun"] = quiet(*open_mpi(), "-n", str(ranks), "/bin/true", env=environment)
    times = interleaved(LOCAL_ROUNDS, runs)
    report.title(f"{ranks} ranks of /bin/true on this machine, median of {LOCAL_ROUNDS} rounds")
    report.less_is_better(f"local-{ranks}-ranks", times.pop("hvdlaunch"), times)


def on_lab(report):
    lab = Lab(4)
    try:
        head = [LAB, "exec", "head"]
        environment = dict(os.environ, LAB_NAME=lab.name)
        times = interleaved(LAB_ROUNDS, {
            "hvdlaunch": quiet(*head, HVDLAUNCH, "-np", "4", "-H", "h1:1,h2:1,h3:1,h4:1", "/bin/true",
                               env=environment),
            "mpiexec.hydra": quiet(*head, "mpiexec.hydra", "-launcher", "ssh", "-hosts", HOSTS, "-n", "4",
                                   "/bin/true", env=environment),
            "mpirun": quiet(*head, *open_mpi(), "--host", HOSTS, "--mca", "plm_rsh_args",
                            "-o BatchMode=yes", "-n", "4", "/bin/true", env=environment),
            "4 x libssh": quiet(*head, FLOOR, "/bin/true", *HOSTS.split(","), env=environment),
            "bare ssh": quiet(*head, "ssh", "-o", "BatchMode=yes", "h1", "/bin/true", env=environment),
        })
    finally:
        lab.down()
    report.title(f"1 rank of /bin/true on each of 4 lab hosts over SSH, median of {LAB_ROUNDS} rounds")
    report.less_is_better("lab-4-hosts", times.pop("hvdlaunch"), times)


def main():
    report = Report("launch", sys.argv[1:])
    for ranks in LOCAL_RANKS:
        local(report, ranks)
    refusal = lab_refusal()
    if refusal:
        print(f"bench launch: the lab's case is not run: {refusal}", file=sys.stderr)
    else:
        on_lab(report)


main()
