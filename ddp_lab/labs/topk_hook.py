"""Top-k compression with error feedback, as a hook: send the largest numbers, and remember the others for later.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.topk_hook

The gradient is the same in each step: 8, 4, 2, 1 on rank 0, ten times that on rank 1, and one number of four is sent.
Look at `sent`, `left` and `total`, the sum of what DDP has got: without feedback it has nothing but the largest.
`--share 0.5` sends two of four, `--no-feedback` forgets the others.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


class TopK:
    """What the hook is registered with: the share of a bucket to send, and what each weight has left on this rank."""

    def __init__(self, share, feedback=True):
        self.share, self.feedback, self.left = share, feedback, {}


def topk_hook(state, bucket):
    gradient, parts = bucket.buffer(), list(zip(bucket.parameters(), bucket.gradients(), strict=True))
    if state.feedback:
        for weight, part in parts:  # by weight, not by bucket: DDP makes other buckets after the first step
            part += state.left.get(weight, 0)  # a view of the buffer
    places = gradient.abs().topk(max(1, round(state.share * len(gradient)))).indices
    numbers = gradient[places]
    gradient[places] = 0
    for weight, part in parts:
        state.left[weight] = part.clone()

    places = places.int()  # half the bytes of int64
    all_numbers, all_places = ([torch.empty_like(x) for _ in range(dist.get_world_size())] for x in (numbers, places))
    works = [dist.all_gather(all_numbers, numbers, async_op=True), dist.all_gather(all_places, places, async_op=True)]

    def add(_):  # each rank has chosen places of its own
        gradient.zero_()
        for at, found in zip(all_places, all_numbers, strict=True):
            gradient.index_add_(0, at, found)
        return gradient.div_(dist.get_world_size())

    return torch.futures.collect_all([work.get_future() for work in works]).then(add)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=0.25, help="of the numbers in a bucket")
    parser.add_argument("--no-feedback", action="store_true")
    args = parser.parse_args()
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    net = nn.Linear(4, 1, bias=False).to(device)
    model = DistributedDataParallel(net)
    state = TopK(args.share, not args.no_feedback)
    model.register_comm_hook(state, topk_hook)

    mine = torch.tensor([8.0, 4.0, 2.0, 1.0], device=device) * 10 ** dist.get_rank()
    total = torch.zeros(4, device=device)
    for step in range(16):
        net.zero_grad()
        model(mine).sum().backward()  # the gradient of the weights is `mine`
        total += net.weight.grad[0]
        worker.log(step=step, gradient=net.weight.grad[0], left=state.left[net.weight][0], total=total)
    print(f"total {total.tolist()}, left {state.left[net.weight][0].tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
