"""What each rank had before a collective and has after it, and who waits for whom in one."""

import ctypes
import math

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, INK, new_figure, style, text_on
from ddp_lab.launch.output import rank_color, text_color

SIDE = 0.37  # inches of paper for a box


def exchanges(panels, columns=2):
    """What each rank had before a collective, and has after it: a panel for each entry of `{title: (run, name)}`.

    Drawn from the ranks' records with `collective`, the name, and `before` and `after`, lists of numbers (or of whole
    numbers as texts); where a rank has logged a name several times, its records stand below each other. Ranks hand in
    multiples of powers of ten, rank r of 10^r: so a digit of a number says from which rank it comes (see origins()). A
    box is a number, in the colour of the rank that it comes from; one in which numbers of several ranks have been put
    together has a strip in their colours; one that no rank can have handed in has a broken frame. "–": nothing. "?": a
    float so large that it may have been rounded, whose digits say nothing: log whole numbers then, of a tensor of whole
    numbers or of float64.
    InputError if there is no panel, or no rank of a run has logged such a record.
    """
    inputs.panels(panels, "exchanges", "{title: (run, name)}")
    pairs = {title: inputs.run_and_name(panel, "exchanges", "ranks") for title, panel in panels.items()}
    found = {title: _records(run, name) for title, (run, name) in pairs.items()}
    columns = min(inputs.count(columns, "exchanges", "columns"), len(found))
    most = [max(len(row[side]) or 1 for rows in found.values() for row in rows) for side in ("before", "after")]
    width = max(most[0] + 1 + most[1], 6)  # one for the arrow; six at least, for the title
    lines = math.ceil(len(found) / columns)
    depths = [len(rows) for rows in found.values()]
    depths = [max(depths[line * columns : (line + 1) * columns]) for line in range(lines)]  # of each line of panels
    size = (columns * (width * SIDE + 0.25) + 0.55, sum(depths) * SIDE + lines * 0.8)
    titles = [*found, *[""] * (lines * columns - len(found))]
    with style():
        figure, all_axes = new_figure(titles, columns, size, [depth + 0.2 for depth in depths], sharex=True)
        figure.get_layout_engine().set(h_pad=0.08)
        for axes in all_axes[len(found) :]:
            axes.set_axis_off()
        shown = None  # the ranks of the panel before
        for place, (axes, rows) in enumerate(zip(all_axes, found.values(), strict=False)):
            ranks = 1 + max(row["rank"] for row in rows)
            limit = exact_up_to(value for row in rows for side in ("before", "after") for value in row[side])
            for line, row in enumerate(rows):
                start = most[0] - max(len(row["before"]), 1)  # up to the arrow
                _row(axes, row["before"], start, line, ranks, limit, row["rank"])
                _row(axes, row["after"], most[0] + 1, line, ranks, limit)
                head = {"arrowstyle": "->", "color": INK}
                axes.annotate("", (most[0] + 0.85, line), (most[0] + 0.15, line), arrowprops=head)
            axes.set(xlim=(-0.1, width + 0.1), ylim=(depths[place // columns] - 0.4, -0.6))
            axes.set_xticks([most[0] - 0.5, most[0] + 1.5], ["before", "after"])
            axes.tick_params(axis="x", labelbottom=True)
            axes.set_yticks(range(len(rows)), [f"rank {row['rank']}" for row in rows], fontweight="bold")
            for label, row in zip(axes.get_yticklabels(), rows, strict=True):
                label.set_color(text_color(rank_color(row["rank"])))
            if place % columns and shown == [row["rank"] for row in rows]:  # as in the panel to the left
                axes.set_yticklabels([])
            shown = [row["rank"] for row in rows]
    return figure


def waits(run, title="No rank leaves the barrier before the last has come"):
    """When each rank came to a collective, and when it left: a bar for the time in which it waited.

    Drawn from what the ranks have logged as `came` and `left`, seconds on one clock (time.monotonic() on one machine).
    InputError if no rank has logged both, or one has logged them twice, or has left before it came.
    """
    frame = inputs.run(run, "waits").frame()
    clock = {}
    for rank, rows in frame[frame["name"].isin(["came", "left"])].groupby("rank"):
        times = dict(zip(rows["name"], rows["value"], strict=True))
        if len(times) < 2:
            continue
        for time in times.values():
            inputs.number(time, "waits", "seconds: worker.log(came=time.monotonic(), left=...)")
        if len(rows) > 2:
            raise InputError(f"waits(): rank {rank} has logged came or left twice. Log them for one collective.")
        if times["left"] < times["came"]:
            raise InputError(f"waits(): rank {rank} has left before it came. Log both by time.monotonic(), in order.")
        clock[int(rank)] = times
    if not clock:
        raise InputError("no rank has logged when it came and left: worker.log(came=time.monotonic(), left=...)")
    start = min(times["came"] for times in clock.values())
    last = max(times["came"] for times in clock.values())
    with style():
        figure, (axes,) = new_figure([title], size=(6.4, 0.36 * len(clock) + 1))
        for row, (rank, times) in enumerate(clock.items()):
            came, left = (1000 * (times[name] - start) for name in ("came", "left"))
            axes.barh(row, left - came, left=came, color=rank_color(rank), height=0.3, alpha=0.6)
            axes.plot(came, row, "o", color=rank_color(rank), markersize=10, clip_on=False)
        axes.axvline(1000 * (last - start), color=INK, linestyle=":", linewidth=1.2, zorder=0)
        axes.set(xlabel="milliseconds since the first rank came (a dot: it comes, a bar: it waits)")
        axes.set_yticks(range(len(clock)), [f"rank {rank}" for rank in clock], fontweight="bold")
        for label, rank in zip(axes.get_yticklabels(), clock, strict=True):
            label.set_color(text_color(rank_color(rank)))
        axes.set(xlim=(-0.03 * axes.get_xlim()[1], None), ylim=(len(clock) - 0.5, -0.5))
    return figure


def origins(value, ranks):
    """The ranks that a number comes from, where each of so many ranks hands in multiples below 10 of 10^rank.

    These are the places of its digits: 30 comes from rank 1, 1010 from ranks 1 and 3. A number with a fraction is
    taken for a mean. () if no such ranks can have given it.
    """
    try:
        number = int(value) if isinstance(value, str) else value + 0
    except (TypeError, ValueError):
        return ()
    if not 0 <= number < math.inf:
        return ()
    if number != int(number):
        number *= ranks
    if number != int(number) or number >= 10**ranks:
        return ()
    return tuple(place for place, digit in enumerate(reversed(str(int(number)))) if digit != "0")


def exact_up_to(numbers):
    """Up to which number floats among these are exact: 2^53 if one of them is none of float32, else 2^24.

    A record does not say of which dtype a number was; one of float32 that is larger may be a sum that was rounded.
    """
    floats = [number for number in numbers if isinstance(number, float) and math.isfinite(number)]
    return 2**53 if any(ctypes.c_float(number).value != number for number in floats) else 2**24


def is_rounded(value, limit):
    """Whether a number may have been rounded: a float above the `limit` of exact_up_to(). Whole numbers are exact."""
    return isinstance(value, float) and limit < abs(value) < math.inf


def _records(run, name):
    """The records of a collective, of all ranks, in order: dicts of rank, before and after."""
    rows, logged = [], {}
    for rank in run.ranks:
        for record in rank.records:
            if "collective" in record:
                logged[str(record["collective"])] = None
            if record.get("collective") == name and record.keys() >= {"before", "after"}:
                rows.append({"rank": rank.rank, **{side: _numbers(record, side) for side in ("before", "after")}})
    if not rows:
        raise InputError(
            f"no rank has logged a collective {name!r} with before and after; logged: {', '.join(logged) or 'none'}"
        )
    return sorted(rows, key=lambda row: row["rank"])


def _numbers(record, side):
    """The list that was logged as `before` or `after`."""
    values = record[side]
    if not isinstance(values, list) or not all(isinstance(value, (int, float, str)) for value in values):
        raise InputError(
            f"exchanges(): the {side} of {record['collective']!r} is {inputs.brief(values)}. Log a list of numbers, "
            f"such as {side}=t.flatten(); [] where there is nothing."
        )
    return values


def _row(axes, values, start, line, ranks, limit, own=None):
    """The boxes of one rank, from `start` on; a dash where there are none. `own`: who hands in its own, and no sums."""
    if not values:
        axes.text(start + 0.5, line, "–", ha="center", va="center")
    for place, value in enumerate(values):
        known = origins(value, ranks)
        if is_rounded(value, limit) and known != (own,):
            _box(axes, start + place, line, "?", (), True)
        else:
            _box(axes, start + place, line, value, known, value in (0, "0"))


def _box(axes, column, line, value, ranks, plain):
    """The box of a number that comes from these ranks; `plain`: from none of them, as it may."""
    from matplotlib.patches import FancyBboxPatch, Rectangle

    shape = "round,pad=0,rounding_size=0.1"
    box = FancyBboxPatch((column + 0.06, line - 0.42), 0.88, 0.84, boxstyle=shape)
    look = {"ha": "center", "va": "center", "fontweight": "bold", "fontsize": 8, "color": INK}
    height = line
    if len(ranks) == 1:
        box.set(facecolor=rank_color(ranks[0]), edgecolor="none")
        look["color"] = text_on(rank_color(ranks[0]))
    else:
        alien = not ranks and not plain
        box.set(facecolor="none", edgecolor=BROKEN if alien else INK, linewidth=1, linestyle="--" if alien else "-")
        look["color"] = BROKEN if alien else INK
        for place, rank in enumerate(ranks):
            width = 0.76 / len(ranks)
            strip = Rectangle((column + 0.12 + place * width, line + 0.12), width, 0.22, color=rank_color(rank))
            strip.set_linewidth(0)
            axes.add_patch(strip)
        height = line - 0.12 if ranks else line
    axes.add_patch(box)
    axes.text(column + 0.5, height, _short(value), **look)


def _short(value):
    """A number in the width of a box."""
    if isinstance(value, str):
        return value
    if abs(value) >= 10_000:
        return f"{value:.0e}".replace("e+0", "e")
    return f"{value:.4g}"
