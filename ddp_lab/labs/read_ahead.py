"""Who counts what was read? A sampler has handed out more than the loop has trained on, where workers fetch ahead.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.read_ahead

Look at `handed_out` beside `trained`, without workers and with two. The last records: how many samples are loaded
to get the fourth, by `islice`, and by a sampler that begins there.
"""

import gc
from itertools import islice

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddp_lab import worker

SAMPLES = 24


class Counting(DistributedSampler):
    handed_out = 0

    def __iter__(self):
        for sample in super().__iter__():
            self.handed_out += 1
            yield sample


class Images(Dataset):
    loaded = 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, sample):
        self.loaded += 1
        return sample


def main():
    dist.init_process_group()
    for workers in (0, 2):
        sampler = Counting(range(SAMPLES))
        loader = DataLoader(range(SAMPLES), batch_size=1, sampler=sampler, num_workers=workers)
        for trained, _ in enumerate(loader, 1):
            worker.log(workers=workers, trained=trained, handed_out=sampler.handed_out)

    skipping, beginning = Images(), Images()
    loader = DataLoader(skipping, batch_size=1)
    worker.log(got=next(islice(loader, 3, None)), loaded_by_islice=skipping.loaded)
    loader = DataLoader(beginning, batch_size=1, sampler=range(3, SAMPLES))
    worker.log(got=next(iter(loader)), loaded_from_there=beginning.loaded)
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
