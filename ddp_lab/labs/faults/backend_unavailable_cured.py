"""No backend in the script: torch takes the one that belongs to the device.

    CUDA_VISIBLE_DEVICES= torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.backend_unavailable_cured

Look at the backends that the group has, one for each kind of device.
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
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    dist.init_process_group(timeout=timedelta(minutes=2))
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    worker.log(backend=dist.get_backend_config(), total=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
