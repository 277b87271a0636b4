"""What a backend does: each collective with each dtype."""

from ddp_lab.errors import InputError
from ddp_lab.figures import inputs
from ddp_lab.figures.style import BROKEN, FINE, INK, new_figure, style

_SIGNS = {"right": ("✓", FINE), "wrong": ("wrong", BROKEN)}
_REFUSED = ("–", BROKEN)
_PARTS = {"backend", "device", "collective", "dtype", "outcome"}


def backends(run):
    """What each backend did with each collective and dtype, of a run of the lab `backends`: a panel for each device.

    Drawn from the ranks' records with backend, device, collective, dtype and outcome. A filled box with a tick: right
    on all ranks; an empty one with a dash: refused with an error on some rank; "wrong": done, and not right. Below
    each column and behind each row stands how many were right. InputError if no rank has logged such records.
    """
    tried = {}  # {(backend, device): {(collective, dtype): [outcome of each rank]}}
    for rank in inputs.run(run, "backends", "ranks").ranks:
        for record in rank.records:
            if record.keys() >= _PARTS:
                panel = tried.setdefault((record["backend"], record["device"]), {})
                panel.setdefault((record["collective"], record["dtype"]), []).append(record["outcome"])
    if not tried:
        raise InputError(f"no rank has logged what it has tried: records with {', '.join(sorted(_PARTS))}")
    titles = [_title(*place, outcomes) for place, outcomes in tried.items()]
    rows = len({collective for outcomes in tried.values() for collective, _ in outcomes})
    with style():
        figure, all_axes = new_figure(titles, size=(7.4, (0.27 * rows + 1.25) * len(titles)))
        for axes, outcomes in zip(all_axes, tried.values(), strict=True):
            _grid(axes, outcomes)
    return figure


def _title(backend, device, outcomes):
    right = sum(set(of_ranks) == {"right"} for of_ranks in outcomes.values())
    return f"{backend} on {device}: {right} of {len(outcomes)} pairs of collective and dtype are done"


def _grid(axes, outcomes):
    from matplotlib.patches import FancyBboxPatch

    collectives, dtypes = ([*dict.fromkeys(key[part] for key in outcomes)] for part in (0, 1))
    done = dict.fromkeys([*collectives, *dtypes], 0)
    for (collective, dtype), of_ranks in outcomes.items():
        worst = next((outcome for outcome in of_ranks if outcome != "right"), "right")
        sign, color = _SIGNS.get(worst, _REFUSED)
        column, row = dtypes.index(dtype), collectives.index(collective)
        box = FancyBboxPatch((column - 0.42, row - 0.36), 0.84, 0.72, boxstyle="round,pad=0,rounding_size=0.12")
        if worst == "right":
            box.set(facecolor=color, edgecolor="none")
            done[collective] += 1
            done[dtype] += 1
        else:
            box.set(facecolor="none", edgecolor=INK, alpha=0.45, linewidth=0.8)
        axes.add_patch(box)
        look = {"ha": "center", "va": "center", "fontweight": "bold", "fontsize": 9 if len(sign) == 1 else 7}
        axes.text(column, row, sign, color="#FFFFFF" if worst == "right" else color, **look)
    for row, collective in enumerate(collectives):
        axes.text(len(dtypes) - 0.4, row, f"{done[collective]}", color=INK, ha="left", va="center", fontsize=9)
    axes.set(xlim=(-0.55, len(dtypes)), ylim=(len(collectives) - 0.45, -0.55))
    names = [f"{done[dtype]}\n{dtype}".replace("_", "\n") for dtype in dtypes]  # a long one in two lines
    axes.set_xticks(range(len(dtypes)), names, fontsize=8)
    axes.set_yticks(range(len(collectives)), collectives)
    axes.set_xlabel("how many collectives are done with each dtype  (✓ done, – refused)")
