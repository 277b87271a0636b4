"""Two ways to number the workers of all ranks: which ranks get what is left over of a stream?

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.stream_ends

Look at how many batches each rank has. The last record says what a loader thinks of a sampler for a stream.
"""

import gc

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from ddp_lab import worker


class Stream(IterableDataset):
    def __init__(self, samples, first):
        self.samples, self.first = samples, first
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        me = get_worker_info()
        if self.first == "rank":
            part = self.rank * me.num_workers + me.id
        else:
            part = me.id * self.world_size + self.rank
        return iter(range(part, self.samples, self.world_size * me.num_workers))


def main():
    dist.init_process_group()
    for samples, first in ((10, "rank"), (10, "worker"), (9, "worker")):
        stream = Stream(samples, first)
        for step, batch in enumerate(DataLoader(stream, batch_size=2, num_workers=2)):
            worker.log(case=f"{samples} samples, {first} first", step=step, samples=batch)
    try:
        DataLoader(stream, sampler=DistributedSampler(range(10)))
    except ValueError as error:
        worker.log(error=str(error))
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
