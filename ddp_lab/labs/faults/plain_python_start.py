"""Started by `python`, a rank does not know who it is: torchrun is what tells it.

    python -m ddp_lab.labs.faults.plain_python_start

Look at the last line: the first of the variables that torchrun would have set.
"""

import gc

import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    worker.log(rank=dist.get_rank(), world_size=dist.get_world_size())
    dist.barrier()  # a rank that left now would break off one that is still joining
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
