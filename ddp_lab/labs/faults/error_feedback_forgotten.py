"""Only the largest hundredth of the gradients is sent, and the rest is forgotten in each step: most weights never move.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.error_feedback_forgotten

Look at the losses of the two trainings, and at `off`, the distance of their weights as a share of the way that the
whole gradients have gone; `still` is the share of the weights that have never moved.
"""

import copy
import gc

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import data, models, worker


def send_largest(left, bucket):
    """Top-k in short: what is not sent is 0. (`labs/topk_hook` sends places and numbers, and so fewer bytes.)"""
    gradient = bucket.buffer()
    places = gradient.abs().topk(len(gradient) // 100).indices
    sent = torch.zeros_like(gradient)
    sent[places] = gradient[places]
    work = dist.all_reduce(sent, async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())


def flat(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = data.digits("train").tensors
    for seed in range(3):
        torch.manual_seed(seed)
        start = models.mlp()  # the same on all ranks
        nets = {"whole": copy.deepcopy(start), "largest": copy.deepcopy(start)}
        for name, net in nets.items():
            model = DistributedDataParallel(net, bucket_cap_mb=1024)
            if name == "largest":
                model.register_comm_hook({}, send_largest)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            order = torch.Generator().manual_seed(seed)
            for _ in range(200):
                mine = torch.randint(len(images), (64,), generator=order)[rank::world_size]
                optimizer.zero_grad()
                cross_entropy(model(images[mine]), labels[mine]).backward()
                optimizer.step()

        losses = {name: cross_entropy(net(images), labels) for name, net in nets.items()}
        begin, whole, largest = map(flat, [start, nets["whole"], nets["largest"]])
        off, still = (largest - whole).norm() / (whole - begin).norm(), (largest == begin).float().mean()
        worker.log(seed=seed, off=off, still=still, **losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
