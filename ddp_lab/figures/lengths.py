"""How long each rank's batches are, and how long the ranks wait for each other's."""

from numbers import Real

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import INK, new_figure, style
from ddp_lab.launch.output import rank_color

MOST_STEPS = 24  # groups of bars in a row, which a page still shows


def lengths(runs, name="length", label="tokens in the longest sequence"):
    """The length of each rank's batch in each step: below each other a panel for each entry of `{title: run}`.

    Drawn from the numbers that the ranks have logged as `name`, one a step. A bar is a rank's batch; the outline above
    it reaches up to the longest of that step, for which this rank waits. At the right stands which part of all ranks'
    time is such waiting, where time goes by length. InputError if there is no panel, if the ranks of a run have not
    logged such numbers for the same steps, or if there are more steps than a page shows.
    """
    from matplotlib.patches import Patch

    inputs.panels(runs, "lengths", "{title: run}")
    found = {title: _lengths(run, name) for title, run in runs.items()}
    with style():
        size = (6.4, 1.3 * len(found) + 0.6)
        figure, all_axes = new_figure(list(found), size=size, sharex=True, sharey=True)
        for axes, steps in zip(all_axes, found.values(), strict=True):
            for step, own in steps.items():
                longest, width = max(own.values()), 0.8 / len(own)
                for place, (rank, length) in enumerate(own.items()):
                    x = step - 0.4 + width * (place + 0.5)
                    axes.bar(x, length, width=width * 0.9, color=rank_color(rank))
                    look = {"fill": False, "edgecolor": INK, "linewidth": 0.8, "linestyle": ":"}
                    axes.bar(x, longest - length, bottom=length, width=width * 0.9, **look)
            where = {"xycoords": "axes fraction", "va": "center", "fontweight": "bold"}
            axes.annotate(f"{waiting(steps):.0%}\nwaiting", (1.01, 0.5), **where)
        axes.set_xticks(sorted({step for steps in found.values() for step in steps}))
        ranks = sorted({rank for steps in found.values() for own in steps.values() for rank in own})
        keys = [Patch(color=rank_color(rank), label=f"rank {rank}") for rank in ranks]
        figure.legend(handles=keys, loc="outside upper right", ncols=len(ranks), frameon=False, fontsize=9)
        axes.set_xlabel("step (a bar for each rank; dotted: what it waits)")
        figure.supylabel(label, fontsize=10, color=INK)
    return figure


def waiting(steps):
    """Which part of all ranks' time is waiting for the longest: of {step: {rank: length}}."""
    all_time = sum(max(own.values()) * len(own) for own in steps.values())
    return 1 - sum(sum(own.values()) for own in steps.values()) / all_time


def _lengths(run, name):
    """{step: {rank: length}} of a run."""
    frame = inputs.run(run, "lengths").frame()
    rows = frame[frame["name"] == name]
    steps = {}
    for rank, step, value in zip(rows["rank"], rows["step"], rows["value"], strict=True):
        if isinstance(value, Real) and value > 0:
            steps.setdefault(int(step), {})[int(rank)] = value
    if not steps or len({tuple(own) for own in steps.values()}) > 1:
        raise InputError(f"lengths: each rank has to log a number above 0 as {name!r} in every step")
    if len(steps) > MOST_STEPS:
        raise InputError(f"lengths: there are {len(steps)} steps, and a page shows {MOST_STEPS}")
    return steps
