"""One rank skips a batch, and a collective with it: from then on it is one call ahead, and at the end one short.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.skip_batch_one_rank

Look at the sums after step 2, and at where each rank stands.
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    # torch's own limit: it ends the hang of a run by hand. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank = dist.get_rank()

    for step in range(5):
        loss = torch.tensor([(step + 1) * 10.0**rank])
        if rank == 1 and step == 2:
            loss[:] = torch.nan  # a broken batch
        if loss.isnan():
            continue
        before = loss.clone()
        dist.all_reduce(loss)
        worker.log(step=step, collective="loss", before=before, after=loss)
    dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
