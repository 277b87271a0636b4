"""A barrier moves no random numbers: ranks that have seeds of their own draw differently after it. A sent seed helps.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.barrier_and_seed

Look at what each rank draws after the barrier, and after the seed of rank 0 was sent to all.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    torch.manual_seed(dist.get_rank())
    before = torch.get_rng_state()
    dist.barrier()
    moved = not torch.equal(before, torch.get_rng_state())
    worker.log(moved=moved, after_a_barrier=torch.rand(()))

    seed = torch.tensor(1234 + dist.get_rank())
    dist.broadcast(seed, src=0)  # one number, sent: now all ranks have rank 0's
    torch.manual_seed(seed.item())
    worker.log(after_a_sent_seed=torch.rand(()))
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
