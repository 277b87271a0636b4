"""The time of a traced run: when each rank computes, and when it communicates."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import INK, new_figure, style
from ddp_lab.launch.output import rank_color, text_color

MOST_BARS = 400  # of a rank, which a page still shows
THICK = 0.36  # of a lane; a rank's two lanes, and what is between two ranks, are 1
COMPUTING, MOVING = -0.21, 0.21  # the middles of a rank's lanes, from its own middle

# How a kind is drawn in a colour: they differ in lightness and hatching, besides standing in two lanes.
_LOOKS = {
    "forward": lambda color: {"facecolor": (color, 0.35), "linewidth": 0},
    "backward": lambda color: {"facecolor": color, "linewidth": 0},
    "optimizer": lambda color: {"facecolor": "none", "edgecolor": color, "linewidth": 1, "hatch": "......"},
    "communication": lambda color: {"facecolor": "none", "edgecolor": color, "linewidth": 1, "hatch": "//////"},
}


def timeline(run, steps=None, title=None):
    """When each rank of a run with `trace=True` computes and communicates: two lanes for each rank, in its colour.

    In the upper lane stand forward (light), backward (full) and optimizer (dotted), in the lower one a hatched bar for
    each communication, with its number in the step, from 0 on, where there is room; those that go on at once stand
    below each other. Where the upper lane is empty, the rank does none of these: it waits, or is at something else.
    `steps`: the steps to draw, one or a list, as they are called in `run.timeline()`; left out, the last. Of several
    every second has a ground behind it. `run`: a Run; or rows of its table, all of which are drawn then.
    InputError for a run that was not traced, a step that there is not, or more than a page shows.
    """
    table = run.timeline() if hasattr(run, "timeline") else run
    columns = ["rank", "step", "kind", "begin", "end"]
    inputs.table(table, "timeline", columns, "a run with trace=True, or rows of run.timeline()")
    table = table.assign(step=table["step"].astype("object").where(table["step"].notna(), None))
    known = _distinct(table["step"])
    if steps is None and hasattr(run, "timeline"):
        steps = known[-1:] or None
    if steps is not None:
        steps = list(steps) if isinstance(steps, (list, tuple, set, range)) else [steps]
        if unknown := [step for step in steps if step not in known]:
            raise InputError(f"timeline(): there is no step {_few(unknown)}. The run has the steps {_few(known)}.")
        table = table[[step in steps for step in table["step"]]]
    if not len(table):
        raise InputError("timeline: there is nothing to draw: no rank has computed or communicated.")
    ranks = {int(rank): rows for rank, rows in table.groupby("rank")}
    if (most := max(map(len, ranks.values()))) > MOST_BARS:
        raise InputError(
            f"timeline: a rank has {most} rows, and a page shows {MOST_BARS}. Draw fewer steps, such as "
            f"timeline(run, steps={known[-1]!r})."
        )
    zero, drawn = table["begin"].min(), _distinct(table["step"])
    width = 1000 * (table["end"].max() - zero)
    title = title or "When each rank computes and communicates"
    with style():
        figure, (axes,) = new_figure([title], size=(7.2, 0.85 * len(ranks) + 1.35))
        for row, (rank, own) in enumerate(ranks.items()):
            own = own.assign(begin=1000 * (own["begin"] - zero), end=1000 * (own["end"] - zero))
            for kind in ("forward", "backward", "optimizer"):
                _bars(axes, own[own["kind"] == kind], row + COMPUTING, _LOOKS[kind](rank_color(rank)))
            moving = own[own["kind"] == "communication"]
            _communication(axes, moving, row + MOVING, _LOOKS["communication"](rank_color(rank)), width)
            if len(drawn) > 1:
                _grounds(axes, own, row, drawn)
        axes.set(xlim=(-0.01 * width, 1.01 * width), ylim=(len(ranks) - 0.4, -0.6 if len(drawn) < 2 else -0.75))
        axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks], fontweight="bold")
        for label, rank in zip(axes.get_yticklabels(), ranks, strict=True):
            label.set_color(text_color(rank_color(rank)))
        axes.set_xlabel(f"ms from the beginning of {'the rows' if drawn[0] is None else f'step {drawn[0]}'}")
        axes.tick_params(axis="x", length=3, color=INK)
        _legend(figure, [kind for kind in _LOOKS if kind in set(table["kind"])])
    return figure


def _bars(axes, rows, middle, look, thick=THICK):
    axes.barh([middle] * len(rows), rows["end"] - rows["begin"], thick, rows["begin"], **look)


def _communication(axes, rows, middle, look, width):
    """Bars that share the lane while they go on at once, each with its number in its step."""
    lanes = _sublanes(list(zip(rows["begin"], rows["end"], strict=True)))
    count = 1 + max(lanes, default=0)
    thick = THICK / count
    numbers, free = {}, -1.0
    for lane, step, begin, end in zip(lanes, rows["step"], rows["begin"], rows["end"], strict=True):
        place = middle - THICK / 2 + thick * (lane + 0.5)
        axes.barh(place, end - begin, thick, begin, **look)
        number = numbers[str(step)] = numbers.get(str(step), -1) + 1
        if begin >= free:
            axes.text(begin, middle + THICK / 2 + 0.02, str(number), fontsize=7, ha="left", va="top")
            free = begin + (0.008 + 0.008 * len(str(number))) * width


def _sublanes(pairs):
    """For each stretch of time, in the order of their beginnings, the first lane that is free."""
    ends, found = [], []
    for begin, end in pairs:
        lane = next((lane for lane, until in enumerate(ends) if until <= begin), len(ends))
        ends[lane : lane + 1] = [end]
        found.append(lane)
    return found


def _grounds(axes, own, row, drawn):
    """Shade every second step of a rank, and write the steps' names above the first rank."""
    from matplotlib.patches import Rectangle

    for number, step in enumerate(drawn):
        rows = own[[one == step for one in own["step"]]]
        if not len(rows):
            continue
        begin, end = rows["begin"].min(), rows["end"].max()
        if number % 2 == 0:
            ground = Rectangle((begin, row - 0.47), end - begin, 0.94, color=INK, alpha=0.12, zorder=0, linewidth=0)
            axes.add_patch(ground)
        if row == 0 and step is not None:
            axes.text((begin + end) / 2, -0.5, f"step {step}", ha="center", va="bottom", fontsize=9)


def _legend(figure, kinds):
    from matplotlib.patches import Patch

    marks = [Patch(**_LOOKS[kind](INK)) for kind in kinds]
    figure.legend(marks, kinds, loc="outside lower left", ncols=4, frameon=False, handlelength=2.6)


def _distinct(values):
    """In the order of their first; a list for one that a set could not hold."""
    found = []
    for value in values:
        if value not in found:
            found.append(value)
    return [value for value in found if value is not None] or found


def _few(values):
    """Some of these, as text."""
    shown = [str(value) for value in values]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-3:]])
