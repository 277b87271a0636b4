"""No rank has joined a group: DDP has none to work in.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.not_initialised

Look at the error: a sampler, a collective or the question for the rank would have met the same.
"""

import gc

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    worker.log(loss=loss)


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
