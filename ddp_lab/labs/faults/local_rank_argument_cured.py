"""A device by LOCAL_RANK, which every launcher sets.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.local_rank_argument_cured

Look at: one device for each rank.
"""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    local_rank = int(os.environ["LOCAL_RANK"])
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
