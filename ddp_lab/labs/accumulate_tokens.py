"""Sequences of different lengths: each step is to take the mean over all its tokens, however they are cut up.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.accumulate_tokens

Look at the weights after each step. One process has them that takes all sequences of a step as one batch
(`--nproc-per-node 1`, `--micro-batch 16`): with `--loss tokens` they are the same on any number of ranks.
(Up to 10: each needs a sequence in each step, and the last step has 10.)
"""

import argparse
import contextlib
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

from ddp_lab import models, worker

PAD = -100  # what cross_entropy() leaves out
SEQUENCES = [16, 16, 16, 10]  # in each step, in all; the last one is smaller


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loss", choices=["mean", "tokens"], default="mean")
    parser.add_argument("--micro-batch", type=int, default=2, help="sequences of a rank in one forward")
    args = parser.parse_args()
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(rank)  # the ranks begin apart: the wrap makes them equal
    model = DistributedDataParallel(models.tied().double().to(device))  # words -> scores of the next word
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    drawn = torch.Generator().manual_seed(0)  # the same sequences on all ranks
    for step, count in enumerate(SEQUENCES):
        lengths = torch.randint(2, 14, (count,), generator=drawn)
        mine = [torch.randint(12, (n,), generator=drawn) for n in lengths][rank::world_size]
        window = [
            pad_sequence(mine[i : i + args.micro_batch], batch_first=True, padding_value=PAD).to(device)
            for i in range(0, len(mine), args.micro_batch)
        ]
        assert window, f"{count} sequences in step {step}: too few for {world_size} ranks"
        tokens = sum((words[:, 1:] != PAD).sum() for words in window)
        total = tokens.clone()
        dist.all_reduce(total)  # of the whole step, over all ranks
        for i, words in enumerate(window):
            inputs = words[:, :-1].clamp(min=0).flatten()  # PAD is no word; no loss knows which it is
            targets = words[:, 1:].flatten()
            with contextlib.nullcontext() if i + 1 == len(window) else model.no_sync():
                scores = model(inputs)
                if args.loss == "mean":  # of this micro-batch's tokens, and then of the micro-batches
                    loss = cross_entropy(scores, targets) / len(window)
                else:  # DDP divides by world_size
                    loss = cross_entropy(scores, targets, reduction="sum") * world_size / total
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        worker.log(step=step, micro_batches=len(window), tokens=tokens, total=total, weights=weights)
    print(f"{tokens} of {total} tokens in the last step, in {len(window)} micro-batches")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
