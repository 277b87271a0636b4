"""What each sample weighs in the gradient of each step."""

import math
from fractions import Fraction

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, FINE, INK, new_figure, style
from ddp_lab.launch.output import rank_color, text_color

MOST_SAMPLES, MOST_ROWS = 32, 24  # in a picture that a page still shows
ROUNDING = 1e-4  # of float32 sums, with room


def shares(runs, of="sample"):
    """What each sample weighs in each step's gradient: below each other a panel for each entry of `{title: run}`.

    Drawn from the lists that the ranks have logged as `shares`, in each step a number for each sample. A row is a step,
    where the ranks have the same; else a step of one rank. A bar is a sample's share, with its number (a fraction where
    it is one); at the right stands what the row adds up to. A row that is a mean over its samples, equal shares that
    add up to 1, the same on all ranks, has the colour of what is as it should be, any other the colour of what is not.
    `of`: what is counted, for the axis. InputError if there is no panel, or no rank of a run has logged such lists, or
    there are more than a page shows.
    """
    inputs.panels(runs, "shares", "{title: run}")
    found = {title: _rows(run) for title, run in runs.items()}
    count = max(len(values) for rows in found.values() for *_, values in rows)
    heights = [len(rows) for rows in found.values()]
    if count > MOST_SAMPLES or sum(heights) > MOST_ROWS:
        raise InputError(
            f"shares(): {count} {of}s in {sum(heights)} rows; a page shows {MOST_SAMPLES} in {MOST_ROWS}. Draw fewer."
        )
    highest = max(abs(value) for rows in found.values() for *_, values in rows for value in values) or 1
    size = (6.6, 0.36 * sum(heights) + 0.45 * len(heights) + 0.6)
    with style():
        figure, all_axes = new_figure(list(found), size=size, heights=heights, sharex=True)
        for axes, rows in zip(all_axes, found.values(), strict=True):
            for place, (_, _, right, values) in enumerate(rows):
                _row(axes, place, values, highest, FINE if right else BROKEN, small=count > 16)
            axes.set(xlim=(-0.6, count - 0.4), ylim=(len(rows) - 0.5, -0.62))
            axes.set_xticks(range(count), range(count), fontsize=9 if count <= 20 else 7)
            names = [f"step {step}" + ("" if rank is None else f", rank {rank}") for step, rank, *_ in rows]
            axes.set_yticks([place + 0.2 for place in range(len(rows))], names, fontsize=9)
            for label, (_, rank, *_) in zip(axes.get_yticklabels(), rows, strict=True):
                if rank is not None:
                    label.set(color=text_color(rank_color(rank)), fontweight="bold")
        axes.set_xlabel(f"{of} (bar and number: what it weighs in the gradient; right: their sum)")
    return figure


def _rows(run):
    """[(step, rank, whether it is right, its shares)] in order; rank None where all ranks have the same."""
    frame = inputs.run(run, "shares").frame()
    rows = frame[frame["name"] == "shares"]
    steps = {}
    for rank, step, values in zip(rows["rank"], rows["step"], rows["value"], strict=True):
        if isinstance(values, list) and values and all(isinstance(value, (int, float)) for value in values):
            steps.setdefault(step, {})[int(rank)] = values
    if not steps:
        raise InputError("no rank has logged shares: worker.log(step=step, shares=[...]), a number for each sample")
    found = []
    for step, ranks in steps.items():
        first, *others = ranks.values()
        if all(_near(first, other) for other in others):
            found.append((step, None, _is_mean(first), first))
        else:
            found += [(step, rank, False, values) for rank, values in sorted(ranks.items())]
    return found


def _near(one, other):
    return len(one) == len(other) and all(abs(a - b) <= ROUNDING for a, b in zip(one, other, strict=True))


def _is_mean(values):
    """Whether these are equal shares, of some samples, that add up to 1."""
    some = [value for value in values if value]
    return bool(some) and max(some) - min(some) <= ROUNDING and abs(sum(some) - 1) <= 10 * ROUNDING


def _row(axes, place, values, highest, color, small):
    floor = place + 0.4
    axes.plot([-0.5, len(values) - 0.5], [floor, floor], color=INK, linewidth=0.6, alpha=0.5)
    for sample, value in enumerate(values):
        if value:
            height = 0.55 * value / highest
            axes.bar(sample, -height, bottom=floor, width=0.8, color=color)
            spot = {"ha": "center", "va": "bottom" if value > 0 else "top", "fontsize": 6.5 if small else 8}
            axes.text(sample, floor - height, number(value), **spot)
    spot = {"xycoords": axes.get_yaxis_transform(), "va": "center", "color": color, "fontweight": "bold"}
    axes.annotate(f"{sum(values):.3g}", (1.01, place + 0.2), **spot)


def number(value):
    """A share in a few letters: `1`, `1/8`, `0.36` where it is no fraction of small numbers."""
    if not math.isfinite(value):
        return str(value)
    near = Fraction(value).limit_denominator(99)
    return str(near) if abs(near - value) <= 1e-6 and near.numerator < 10 else f"{value:.2g}"
