"""Each collective of torch.distributed once, with what each rank had before it and has after it.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.collectives

Rank r hands in multiples of 10^r: each digit of a result says from which rank it comes. Look at "after".
"""

import gc
import os
import time

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    row = 10.0**rank * torch.arange(1, world_size + 1, device=device)  # a number for each rank
    one = row[:1].clone()
    root = rank == 0

    # One rank has it, and all get it; or all have it, and one gets it.
    dist.broadcast(got := row.clone(), src=0)  # in place, like all that are given one tensor
    worker.log(collective="broadcast", before=row, after=got)
    dist.scatter(got := torch.empty_like(one), list(row.split(1)) if root else None, src=0)
    worker.log(collective="scatter", before=row if root else [], after=got)
    dist.reduce(got := row.clone(), dst=0)  # a sum, if no op is given
    worker.log(collective="reduce", before=row, after=got)
    parts = [torch.empty_like(one) for _ in range(world_size)] if root else None
    dist.gather(one, parts, dst=0)
    worker.log(collective="gather", before=one, after=torch.cat(parts) if root else [])

    # All have it, and all get it.
    dist.all_reduce(got := row.clone())
    worker.log(collective="all_reduce", before=row, after=got)
    dist.all_gather_single(got := torch.empty_like(row), one)
    worker.log(collective="all_gather", before=one, after=got)
    dist.reduce_scatter_single(got := torch.empty_like(one), row)
    worker.log(collective="reduce_scatter", before=row, after=got)
    dist.all_to_all_single(got := torch.empty_like(row), row)
    worker.log(collective="all_to_all", before=row, after=got)

    # Two ranks alone: each even one sends to the next.
    got = one.clone()
    if rank % 2 == 0 and rank + 1 < world_size:
        dist.send(got, dst=rank + 1)
    elif rank % 2:
        dist.recv(got, src=rank - 1)
    worker.log(collective="send, recv", before=one, after=got)

    # Python objects, which may differ in size.
    text = "1" + rank * "0"
    dist.broadcast_object_list(objects := [text], src=0)
    worker.log(collective="broadcast_object_list", before=[text], after=objects)
    texts = [str(number) for number in range(1, world_size + 1)] if root else []
    dist.scatter_object_list(objects := [None], texts or None, src=0)
    worker.log(collective="scatter_object_list", before=texts, after=objects)
    dist.gather_object(text, objects := [None] * world_size if root else None, dst=0)
    worker.log(collective="gather_object", before=[text], after=objects if root else [])
    dist.all_gather_object(objects := [None] * world_size, text)
    worker.log(collective="all_gather_object", before=[text], after=objects)

    time.sleep(0.05 * rank)  # the higher the rank, the later it comes
    came = time.monotonic()  # one clock for all processes of a machine
    dist.barrier()
    worker.log(came=came, left=time.monotonic())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
