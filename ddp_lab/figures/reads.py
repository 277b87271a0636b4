"""Which rank has read which samples."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import INK, new_figure, style, text_on
from ddp_lab.launch.output import rank_color, text_color

MOST_SAMPLES = 64  # boxes in a row, which a page still shows


def samples(runs):
    """Which rank has read which samples: below each other a panel for each entry of `{title: run}`.

    Drawn from the lists of sample numbers, from 0 on, that the ranks have logged as `samples`, one list a step. A box
    is a sample that this rank has read, the number in it the step (several, where it has read it several times); an
    empty box is one that it has not. InputError if there is no panel, or no rank of a run has logged such lists.
    """
    inputs.panels(runs, "samples", "{title: run}")
    reads = {title: _reads(run) for title, run in runs.items()}
    count = 1 + max(sample for ranks in reads.values() for steps in ranks.values() for sample in steps)
    heights = [len(ranks) for ranks in reads.values()]
    size = (6.4, 0.36 * sum(heights) + 0.5 * len(heights) + 0.5)
    with style():
        figure, all_axes = new_figure(list(reads), size=size, heights=heights, sharex=True)
        for axes, ranks in zip(all_axes, reads.values(), strict=True):
            for row, (rank, steps) in enumerate(ranks.items()):
                for sample in range(count):
                    _box(axes, sample, row, steps.get(sample, []), rank_color(rank))
            axes.set(xlim=(-0.55, count - 0.45), ylim=(len(ranks) - 0.45, -0.55))
            axes.set_xticks(range(count))
            axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks], fontweight="bold")
            for label, rank in zip(axes.get_yticklabels(), ranks, strict=True):
                label.set_color(text_color(rank_color(rank)))
        axes.set_xlabel("sample (in its box: the step in which it is read)")
    return figure


def _reads(run):
    """{rank: {sample: [steps in which it was read]}} of the lists that the ranks logged as `samples`."""
    frame = inputs.run(run, "samples").frame()
    rows = frame[frame["name"] == "samples"]
    reads = {int(rank): {} for rank in sorted(set(frame["rank"]))}
    for rank, step, listed in zip(rows["rank"], rows["step"], rows["value"], strict=True):
        for sample in listed if isinstance(listed, list) else []:
            if isinstance(sample, (int, float)) and 0 <= sample < MOST_SAMPLES and sample == int(sample):
                reads[int(rank)].setdefault(int(sample), []).append(step)
    if not any(reads.values()):
        raise InputError("no rank has logged sample numbers: worker.log(step=step, samples=[...]), one list a step")
    return reads


def _box(axes, column, row, steps, color):
    from matplotlib.patches import FancyBboxPatch

    box = FancyBboxPatch((column - 0.37, row - 0.37), 0.74, 0.74, boxstyle="round,pad=0,rounding_size=0.12")
    if steps:
        box.set(facecolor=color, edgecolor="none")
        size = 9 if len(steps) == 1 else 6
        look = {"color": text_on(color), "ha": "center", "va": "center", "fontweight": "bold", "fontsize": size}
        axes.text(column, row, ",".join(map(str, steps)), **look)
    else:
        box.set(facecolor="none", edgecolor=INK, alpha=0.35, linewidth=0.8)
    axes.add_patch(box)
