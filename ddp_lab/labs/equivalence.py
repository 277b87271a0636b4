"""N ranks with DDP train what one process trains with the whole batch: compared in every step.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.equivalence

Look at the differences: rounding errors of float64. `--mutation no_wrap`, or another, is a line or two that break it.
"""

import argparse
import copy
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import models, worker

MUTATIONS = ["none", "no_wrap", "no_broadcast", "frozen_apart", "untied", "no_sampler", "unequal", "sum"]


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def on_all_ranks(mine):
    """One row for each rank."""
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutation", choices=MUTATIONS, default="none")
    mutation = parser.parse_args().mutation
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(rank)  # the ranks begin apart: it is the wrap that makes them equal
    net = models.tied().double().to(device)
    model = net if mutation == "no_wrap" else DistributedDataParallel(net, init_sync=mutation != "no_broadcast")
    twin = copy.deepcopy(net)  # after the wrap, so with rank 0's weights; never wrapped
    trained = [name for name, weight in net.named_parameters() if weight.requires_grad]
    if mutation == "frozen_apart":
        net.frozen.reset_parameters()
    if mutation == "untied":
        net.leave.weight = torch.nn.Parameter(net.enter.weight.detach().clone())
    optimizer = torch.optim.SGD([*net.parameters(), *twin.parameters()], lr=0.5, momentum=0.9)

    batches = torch.Generator().manual_seed(0)  # the same on all ranks
    for step in range(8):
        words, targets = torch.randint(12, (2, 24), generator=batches).to(device)
        mine = slice(rank, None, world_size)  # shares of one size: the number of ranks is to divide 24
        if mutation == "no_sampler":
            mine = slice(0, None, world_size)  # all take the same
        if mutation == "unequal":
            mine = slice(24 - rank, 25 - rank) if rank else slice(25 - world_size)  # one word, and rank 0 the rest

        loss = cross_entropy(net(words[mine]), targets[mine])  # without DDP: the gradients of this rank alone
        alone = on_all_ranks(flat(torch.autograd.grad(loss, [net.get_parameter(name) for name in trained])))
        optimizer.zero_grad()
        cross_entropy(model(words[mine]), targets[mine]).backward()
        cross_entropy(twin(words), targets).backward()  # the whole batch
        if mutation == "sum":
            for name in trained:
                net.get_parameter(name).grad *= world_size
        ours, full = (flat(each.get_parameter(name).grad for name in trained) for each in (net, twin))
        optimizer.step()
        weights, twins = (flat(each.state_dict().values()) for each in (net, twin))  # the frozen ones too
        differences = {
            "gradients_to_twin": ours - full,
            "gradients_between_ranks": ours - on_all_ranks(ours),
            "gradients_to_mean": ours - alone.mean(0),
            "gradients_to_sum": ours - alone.sum(0),
            "weights_to_twin": weights - twins,
            "weights_between_ranks": weights - on_all_ranks(weights),
        }
        worker.log(step=step, **{name: difference.abs().max() for name, difference in differences.items()})
    print(f"after {step + 1} steps the weights are {differences['weights_to_twin'].abs().max():.1e} from the twin's")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
