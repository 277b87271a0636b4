"""The state of the hook goes into the checkpoint, from each rank its own.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.hook_state_not_saved_cured

Look at `off`: how far the weights are from those of the run that went on without a break.
"""

import gc
import io

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import data, models, worker


def begin(checkpoint=None):
    torch.manual_seed(0)
    net = models.mlp(hidden=16)
    model = DistributedDataParallel(net, bucket_cap_mb=1024)  # one bucket: with two, PowerSGD hangs on gloo
    # PowerSGD's memory has the order of the bucket, and DDP makes its final buckets only after a first backward.
    model(torch.zeros(1, 64)).sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    state = PowerSGDState(None, start_powerSGD_iter=3)
    if checkpoint:
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        state = checkpoint["hook"]
    model.register_comm_hook(state, powerSGD_hook)
    return model, optimizer, state


def train(step, model, optimizer):
    """The weights after a step, whose images depend on its number alone."""
    images, labels = data.digits("train").tensors
    mine = slice(step * 64 + dist.get_rank(), step * 64 + 64, dist.get_world_size())
    optimizer.zero_grad()
    cross_entropy(model(images[mine]), labels[mine]).backward()
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main():
    dist.init_process_group()
    model, optimizer, state = begin()
    file, whole = io.BytesIO(), {}  # a file for each rank
    for step in range(12):
        if step == 6:
            saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            saved["hook"] = state  # the errors of this rank, which no other has
            torch.save(saved, file)
        whole[step] = train(step, model, optimizer)

    file.seek(0)
    model, optimizer, state = begin(torch.load(file, weights_only=False))  # of your own files only: it can run anything
    for step in range(6, 12):
        off = (train(step, model, optimizer) - whole[step]).abs().max()
        worker.log(step=step, off=off, compresses_from=state.start_powerSGD_iter, steps=state.iter)
    dist.barrier()  # leave together
    main.group = dist.group.WORLD  # kept to the end: torch aborts where a callback is the last to let go of it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
