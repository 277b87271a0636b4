"""Which GPU of a node each local rank has as its own."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, INK, new_figure, style, text_on
from ddp_lab.launch.output import rank_color, text_color


def devices(tables):
    """The GPUs of a node and who has them: a row of boxes for each entry of `{label: table of lab.visible_devices()}`.

    A box is a GPU, by its number; in it the local ranks whose own device it is. An empty box is a GPU that no rank has.
    At the right stand the ranks that have none. MIG slices, which have no number, stand there by their names.
    InputError if there is no table, or one that is not from lab.visible_devices().
    """
    from matplotlib.patches import FancyBboxPatch

    inputs.panels(tables, "devices", "{label: lab.visible_devices(...)}")
    for label, table in tables.items():
        if "gpus" not in getattr(table, "attrs", {}):
            raise InputError(f"devices: {label!r} is no table of lab.visible_devices(...)")
    count = max(table.attrs["gpus"] for table in tables.values())
    with style():
        size = (6.4, 0.42 * len(tables) + 0.9)
        figure, (axes,) = new_figure(["Which GPU is each local rank's own"], size=size)
        for row, table in enumerate(tables.values()):
            owners = {gpu: [] for gpu in range(table.attrs["gpus"])}
            beside = []
            for rank, physical in zip(table["local_rank"], table["physical"], strict=True):
                if isinstance(physical, str):
                    beside.append((f"rank {rank}: {physical[:14]}", text_color(rank_color(rank))))
                elif physical in owners:
                    owners[physical].append(rank)
                else:
                    beside.append((f"rank {rank}: none", BROKEN))
            for gpu, ranks in owners.items():
                box = FancyBboxPatch((gpu - 0.42, row - 0.36), 0.84, 0.72, boxstyle="round,pad=0,rounding_size=0.12")
                if ranks:
                    color = rank_color(ranks[0])
                    box.set(facecolor=color, edgecolor=BROKEN if len(ranks) > 1 else "none", linewidth=2)
                    text = ",".join(map(str, ranks))
                    axes.text(gpu, row, text, color=text_on(color), ha="center", va="center", fontweight="bold")
                else:
                    box.set(facecolor="none", edgecolor=INK, alpha=0.35, linewidth=0.8)
                axes.add_patch(box)
            shown = beside if len(beside) <= 2 else [*beside[:1], (f"and {len(beside) - 1} more", beside[-1][1])]
            for line, (text, color) in enumerate(shown):
                height = row + (line - (len(shown) - 1) / 2) * 0.38
                axes.text(count - 0.35, height, text, color=color, va="center", fontsize=8.5, fontweight="bold")
        axes.set(xlim=(-0.6, count + 1.6), ylim=(len(tables) - 0.4, -0.6))
        axes.set_xticks(range(count))
        axes.set_yticks(range(len(tables)), list(tables))
        axes.set_xlabel("GPU, as nvidia-smi numbers them (in its box: the local rank)")
    return figure
