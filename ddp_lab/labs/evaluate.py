"""How much each sample counts in an accuracy, for five ways to evaluate on up to 10 ranks (`--way`).

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.evaluate

Each sample in turn is the only wrong one: what the accuracy loses is its weight. Look at it: the last three have 1/n.
"""

import argparse
import gc
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker

SAMPLES = 10


def add_up(hits):  # and divide once, over all ranks
    sums = torch.tensor([hits.sum(), len(hits)])
    dist.all_reduce(sums)
    return sums[0] / sums[1]


def padded(predict):  # the sampler repeats samples, to make the shares equal
    return add_up(torch.cat(predict(DistributedSampler(range(SAMPLES), shuffle=False))))


def mean_of_means(predict):  # over the batches of a rank, then over the ranks
    batches = predict(range(dist.get_rank(), SAMPLES, dist.get_world_size()))
    mean = torch.stack([hits.mean() for hits in batches]).mean()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean


def strided(predict):  # no repeats
    return add_up(torch.cat(predict(range(dist.get_rank(), SAMPLES, dist.get_world_size()))))


def gathered(predict):  # padded, put back into the order of the data set, and cut there
    hits = torch.cat(predict(DistributedSampler(range(SAMPLES), shuffle=False)))
    shares = [torch.empty_like(hits) for _ in range(dist.get_world_size())]
    dist.all_gather(shares, hits)
    return torch.stack(shares, dim=1).flatten()[:SAMPLES].mean()


def on_rank_0(predict):  # the others wait in the broadcast
    mine = range(SAMPLES) if dist.get_rank() == 0 else []
    accuracy = torch.cat(predict(mine)).mean() if mine else torch.zeros(())
    dist.broadcast(accuracy, src=0)
    return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", default="strided", choices="padded mean_of_means strided gathered on_rank_0".split())
    way = globals()[parser.parse_args().way]

    dist.init_process_group()
    weights = []
    for wrong in range(SAMPLES):
        def predict(mine, wrong=wrong):  # [the hits of each batch], 1 or 0
            batches = list(DataLoader(range(SAMPLES), batch_size=2, sampler=mine))
            for step, batch in enumerate(batches if wrong == SAMPLES - 1 else []):  # in the last round alone
                worker.log(step=step, samples=batch)
                time.sleep(0.1)  # a model at work
            return [(batch != wrong).float() for batch in batches]

        dist.barrier()
        start = time.perf_counter()
        weights.append(1 - way(predict))
    worker.log(weights=torch.stack(weights), seconds=time.perf_counter() - start)  # of the last round
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
