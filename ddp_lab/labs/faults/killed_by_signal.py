"""The system kills one rank for its memory: no traceback anywhere, since no Python code ever hears of it.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.killed_by_signal

Look at: rank 1 ended by SIGKILL, and its last record says how much it was holding. (The script plays the
system's part itself, so that your machine need not run out of memory.)
"""

import gc
import os
import signal

import torch
import torch.distributed as dist

from ddp_lab import worker

LIMIT = 20e6  # bytes that the "machine" has for a rank


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    kept = []
    for step in range(6):
        outputs = torch.ones(1_000_000 * (rank + 1))  # rank 1 holds twice as much
        kept.append(outputs)  # to look at them later
        held = sum(tensor.nbytes for tensor in kept)
        worker.log(step=step, held=held)
        if held > LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)  # as the system does: no warning, no exception
        dist.all_reduce(outputs.mean())

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
