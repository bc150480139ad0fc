#!/usr/bin/python3
"""Trains a small network on the UCI handwritten digits with PyTorch's DistributedDataParallel.

    hvdlaunch -np 4 --checkpoint-dir /tmp/ckpt -- /usr/bin/python3 examples/train_ddp.py

Knows nothing of libhvdcomm: it meets the other ranks through MASTER_ADDR and MASTER_PORT (gloo), keeps
checkpoints of its own with torch.save, and tells hvdlaunch about them and about its progress by
datagrams on NOTIFY_SOCKET. It goes on from the file in HVD_RESUME_FROM. The weights
are the same with every launch at the same number of ranks, resumed or not.
"""

import argparse
import glob
import gzip
import hashlib
import os
import socket
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

TRAINING = 1408  # 11 batches of 128: an epoch shows each image once
BATCH = 128
SPLIT_SEED = 13721973


def notify(**variables):
    """Sends NAME=VALUE lines the way sd_notify does; without NOTIFY_SOCKET nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    text = "\n".join(f"{name}={value}" for name, value in variables.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
        s.sendto(text.encode(), address)


def load_digits():
    """Images in [0, 1] and labels, in the order of the split: training first."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.csv.gz")
    with gzip.open(path, "rt") as f:
        rows = torch.tensor([[float(x) for x in line.split(",")] for line in f])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(SPLIT_SEED))]
    return rows[:, :64] / 16, rows[:, 64].long()


def save(directory, step, model, optimizer):
    """Writes DIR/ddp-STEP.pt so that it is there whole or not at all."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"ddp-{step:09d}.pt")
    with open(path + ".tmp", "wb") as f:
        torch.save({"step": step, "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict()}, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".tmp", path)
    folder = os.open(directory, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    notify(X_HVD_CHECKPOINT=os.path.abspath(path), X_HVD_STEP=step)


def find_resume():
    """The file to go on from: HVD_RESUME_FROM, or the newest one in it if it is a folder."""
    path = os.environ.get("HVD_RESUME_FROM", "")
    if os.path.isdir(path):
        found = sorted(glob.glob(os.path.join(path, "ddp-*.pt")))
        if not found:
            sys.exit(f"train_ddp: there is no ddp-*.pt in {path}")
        path = found[-1]
    return path


def resume(model, optimizer):
    path = find_resume()
    if not path:
        return 0
    state = torch.load(path, map_location="cpu")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def batch_of(step, rank, size):
    """This rank's part of a step's batch: each image once an epoch, in an order of its own."""
    epoch, batch = divmod(step, TRAINING // BATCH)
    order = torch.randperm(TRAINING, generator=torch.Generator().manual_seed(epoch))
    return order[batch * BATCH:(batch + 1) * BATCH][rank::size]


def settle_buckets(model, images, labels):
    """Passes that train nothing. After its first pass DDP lays out its buckets anew, which changes
    the order of gloo's sums: fresh and resumed runs would differ in their last bits."""
    for _ in range(2):
        torch.nn.functional.cross_entropy(model(images[:8]), labels[:8]).backward()
    model.zero_grad()


def train(options, rank, size):
    torch.manual_seed(options.seed)
    images, labels = load_digits()
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    directory = os.environ.get("HVD_CHECKPOINT_DIR", "")
    settle_buckets(model, images, labels)
    resumed_at = resume(model, optimizer)
    notify(READY=1, X_HVD_STEP=resumed_at)
    for step in range(resumed_at, options.steps):
        mine = batch_of(step, rank, size)
        optimizer.zero_grad()
        # DDP averages over ranks, whose parts of the batch may differ by one image.
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        (loss * size / BATCH).backward()
        optimizer.step()
        done = step + 1
        notify(X_HVD_STEP=done)
        if rank == 0 and done % 20 == 0:
            print(f"step {done} loss {loss.item() / len(mine):.4f}", flush=True)
        time.sleep(options.step_ms / 1000)
        if rank == 0 and directory and options.checkpoint_every and done % options.checkpoint_every == 0:
            save(directory, done, model, optimizer)
    if rank != 0:
        return
    with torch.no_grad():
        right = (network(images[TRAINING:]).argmax(1) == labels[TRAINING:]).float().mean().item()
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    redone = max(0, int(os.environ.get("HVD_REACHED_STEP") or 0) - resumed_at)
    print(f"steps={options.steps} resumed_at={resumed_at} redone={redone} "
          f"accuracy={right:.3f} sha256={digest.hexdigest()}", flush=True)


def main():
    every = os.environ.get("HVD_CHECKPOINT_EVERY", "")
    parser = argparse.ArgumentParser(description="Trains the digits with DistributedDataParallel.",
                                     allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=int(every) if every.isdigit() else 50)
    parser.add_argument("--step-ms", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo")
    train(options, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
