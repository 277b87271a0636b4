"""A device chosen by the rank: right on one node, by luck; on the second node it names devices that are not there.

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 --master-port 29517 -m ddp_lab.labs.faults.rank_as_device
    torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 --master-port 29517 -m ddp_lab.labs.faults.rank_as_device

Two nodes, played on one machine: start each line in a terminal of its own. Look at the index that each rank has
chosen, and at how many devices its node has for it. (A CPU takes any number; a GPU that is not there is an error.)
"""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    # torch's own limit: it ends the wait for a rank that has met an error. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # ranks on this node, and so the devices that it has for them
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")

    rank, node = dist.get_rank(), int(os.environ["GROUP_RANK"])
    index = rank
    print(f"node {node}, rank {rank}: device {index}, counted from 0, of {here}")
    worker.log(node=node, rank=rank, index=index, devices=here)
    dist.barrier()  # all have said what they take before one may fail
    torch.ones(3, device=torch.device(kind, index))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
