"""A rank keeps the number it needs from each step, not the whole tensor: its memory stays as it was.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.killed_by_signal_cured

Look at how little each rank holds in its last step.
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
        kept.append(outputs.mean())  # what is needed of them later
        held = sum(tensor.nbytes for tensor in kept)
        worker.log(step=step, held=held)
        if held > LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)  # as the system does: no warning, no exception
        dist.all_reduce(outputs.mean())

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
