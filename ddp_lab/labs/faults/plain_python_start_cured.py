"""Started by `torchrun`, each rank knows who it is; started by `python`, the script says what to type.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.plain_python_start_cured

Look at: one record from each rank.
"""

import gc
import sys

import torch.distributed as dist

from ddp_lab import worker


def main():
    if not dist.is_torchelastic_launched():
        sys.exit("start this script with: torchrun --standalone --nproc-per-node 2 -m " + __spec__.name)
    dist.init_process_group()
    worker.log(rank=dist.get_rank(), world_size=dist.get_world_size())
    dist.barrier()  # a rank that left now would break off one that is still joining
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
