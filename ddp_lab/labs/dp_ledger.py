"""What each device of DataParallel receives, sends and holds in one step, for 2 to 16 devices.

    python -m ddp_lab.labs.dp_ledger

Look at device 0 beside the others, as there are more of them. (Where there are two GPUs or more, a step of torch's own
DataParallel follows on them, and the most memory that each has taken.)
"""

import torch

from ddp_lab import models, worker
from ddp_lab.meters.virtual import VirtualDataParallel


def main():
    torch.manual_seed(0)
    share = torch.randn(24, 1, 8, 8)  # for each device: with more devices the batch is larger
    net = models.mlp()
    size = [tensor.numel() * tensor.element_size() for tensor in (share, net(share))]
    weights = sum(p.numel() * p.element_size() for p in net.parameters())
    worker.log(weights=weights, inputs=size[0], outputs=size[1])
    for devices in (2, 3, 4, 6, 8, 12, 16):
        model = VirtualDataParallel(net, devices)
        model(torch.cat(devices * [share])).square().mean().backward()
        ledger, peak = model.ledger, model.peak.reset_index()
        worker.log(step=devices, ledger=ledger.to_dict("list"), peak=peak.to_dict("list"))
        first = ledger[ledger["device"] == 0]
        through = first["bytes_in"].sum() + first["bytes_out"].sum()
        print(f"{devices:2} devices: {through:9,} bytes through device 0")

    if (gpus := torch.cuda.device_count()) > 1:
        model = torch.nn.DataParallel(models.mlp(hidden=8192).to("cuda:0"), list(range(gpus)))
        model(torch.randn(4096 * gpus, 1, 8, 8, device="cuda:0")).square().mean().backward()
        for gpu in range(gpus):
            worker.log(gpu=gpu, allocated=torch.cuda.max_memory_allocated(gpu))


if __name__ == "__main__":
    main()
