"""Rank 0 has two batches and the others have four: the last steps wait for a rank that is not in them.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.uneven_inputs_hang

Look at where each rank stands: rank 0 waits at the end, the others in the backward of step 2. With `--leave`
rank 0 ends instead, and the others lose their connection.
"""

import argparse
import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def train(model, batches):
    weight = next(model.parameters())
    for step in range(batches):
        model.zero_grad()
        model(torch.ones(1, 1)).sum().backward()  # each rank's own gradient is 1
        worker.log(step=step, gradient=weight.grad)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--leave", action="store_true", help="do not wait for the others at the end")
    leave = parser.parse_args().leave
    # torch's own limit ends the hang of a run by hand; a notebook's clocks are shorter
    dist.init_process_group(timeout=timedelta(minutes=2))
    batches = 2 if dist.get_rank() == 0 else 4  # as with files of unequal length

    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    train(model, batches)
    worker.log(batches=batches)

    if not leave:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
