"""Meets the other ranks where MASTER_ADDR and MASTER_PORT say, as torch's store does: rank 0 listens,
the others call, and all must be of the same job. Rank 0 prints how many met."""

import os
import socket
import time

rank, size, job = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["HVD_JOB_ID"]
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", place[1])) as server:
        server.settimeout(30)
        for _ in range(size - 1):
            peer, _ = server.accept()
            with peer, peer.makefile("rw") as talk:
                told = talk.readline().strip()
                assert told == job, f"a rank of {told} came to {job}"
                talk.write(job + "\n")
    print(f"met {size} at {place[0]}")
else:
    deadline = time.monotonic() + 30
    while True:  # until rank 0 listens
        try:
            peer = socket.create_connection(place, 5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    with peer, peer.makefile("rw") as talk:
        talk.write(job + "\n")
        talk.flush()
        told = talk.readline().strip()
        assert told == job, f"{place} belongs to {told}, not to {job}"
