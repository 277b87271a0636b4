"""A device by --local_rank, an argument that torchrun gives to nobody.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.local_rank_argument

Look at the name of the device that cannot be made: what stands for the number is None.
"""

import argparse
import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    local_rank = parser.parse_args().local_rank
    device = torch.device(f"{kind}:{local_rank}")

    dist.init_process_group(timeout=timedelta(minutes=2))
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    print(f"on {device}, {total.item():.0f} ranks")
    worker.log(local_rank=local_rank, total=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
