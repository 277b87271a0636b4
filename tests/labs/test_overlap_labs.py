"""The labs of overlap: DDP's buckets, their size on a slow link, and what each option changes."""

import pytest
import torch

import ddp_lab as lab
from ddp_lab.launch import cluster
from ddp_lab.meters.bucket_sizes import bucket_sizes

MIB = 2**20
WEIGHT, BIAS = 4 * 512 * 512, 4 * 512  # bytes
LAYER = WEIGHT + BIAS
WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": ""}


def buckets(*options):
    return lab.torchrun("buckets", *options, show="none", count=True)


def column(run, name, rank=0):
    """For each step the value of each bucket."""
    steps = {}
    for record in run.ranks[rank].records:
        if "bucket" in record:
            steps.setdefault(record["step"], []).append(record[name])
    return list(steps.values())


def told(run):
    """What DDP itself says of its buckets, the same on all ranks."""
    first, *others = [rank.records[-1] for rank in run.ranks]
    assert all(other == first for other in others)
    return first["built"], first["rebuilt"]


@pytest.mark.parametrize(
    "options, first, later",
    [
        ([], [6 * LAYER], [LAYER, 5 * LAYER]),  # the default: 1 MiB, then 25
        (["--cap", "default"], [6 * LAYER], [LAYER, 5 * LAYER]),
        (["--cap", "25"], [6 * LAYER], [6 * LAYER]),  # is not the default
        (["--cap", "2"], [6 * LAYER], [2 * LAYER] * 3),  # a bucket is full when it has more than the cap
        (["--cap", "0"], [6 * LAYER], [BIAS, WEIGHT] * 6),
        (["--caps", "1", "3"], [2 * LAYER + BIAS, 3 * LAYER, WEIGHT], [LAYER, 3 * LAYER, 2 * LAYER]),
        (["--caps", "1", "--cap", "25"], [BIAS] + [LAYER] * 5 + [WEIGHT], [LAYER] * 6),
    ],
)
def test_the_caps_hold_from_the_second_step_on(options, first, later):
    run = buckets(*options)
    for rank in (0, 1):
        assert column(run, "bytes", rank) == [first] + [later] * 3
    assert told(run) == (first, later)
    counted = run.collectives.query("rank == 1 and op == 'all_reduce'").groupby("step")["bytes"].apply(list)
    assert list(counted) == [first] + [later] * 3


def test_the_buckets_have_numbers_in_order_and_the_last_one_says_so():
    run = buckets("--cap", "2")
    assert column(run, "bucket") == [[0]] + [[0, 1, 2]] * 3
    assert column(run, "is_last") == [[True]] + [[False, False, True]] * 3
    layers = [
        [[f"{layer}.{kind}" for layer in pair for kind in ("bias", "weight")] for pair in ((5, 4), (3, 2), (1, 0))]
    ]
    assert column(run, "holds")[1:] == layers * 3


def test_a_bucket_is_sent_as_soon_as_its_last_gradient_is_there():
    assert column(buckets("--cap", "1"), "ready") == [[12]] + [[2, 4, 6, 8, 10, 12]] * 3


def test_ddp_makes_its_buckets_anew_in_the_order_of_the_gradients():
    run = buckets("--cap", "1", "--backwards")
    assert column(run, "ready") == [[12]] + [[2, 4, 6, 8, 10, 12]] * 3
    assert column(run, "holds")[1] == [[f"{layer}.bias", f"{layer}.weight"] for layer in range(6)]
    rebuilt = run.collectives.query("rank == 0 and op == 'broadcast' and dtype == 'int32'")
    assert list(rebuilt["step"]) == [1, 1]


def test_with_find_unused_parameters_it_never_does():
    run = buckets("--cap", "1", "--backwards", "--find-unused")
    assert column(run, "ready") == [[11] + [12] * 6] * 4
    built, rebuilt = told(run)
    assert column(run, "bytes") == [built] * 4 and rebuilt is None
    assert run.collectives.query("op == 'broadcast' and dtype == 'int32'").empty
    maps = run.collectives.query("rank == 0 and op == 'all_reduce' and dtype == 'int32'")
    assert list(zip(maps["step"], maps["numel"], strict=True)) == [(step, 12) for step in range(4)]


def test_a_cap_that_is_no_number_is_refused():
    with pytest.raises(lab.RankError) as error:
        lab.torchrun("buckets", "--cap", "much", show="none")
    assert "argument --cap: invalid mib value: 'much'" in error.value.run.ranks[error.value.rank].stderr


class Dumb:
    def _get_ddp_logging_data(self):
        return {"bucket_sizes": "5, 7", "rebuilt_bucket_sizes": ""}


def test_the_sizes_are_numbers_and_none_before_they_are_made_anew():
    assert bucket_sizes(Dumb()) == ([5, 7], None)


@pytest.mark.parametrize("nothing", [object(), torch.nn.Linear(1, 1)])
def test_where_torch_does_not_tell_the_buckets_it_says_so(nothing):
    with pytest.raises(RuntimeError, match=f"does not tell the buckets of a {type(nothing).__name__}"):
        bucket_sizes(nothing)


def swept(run):
    """{cap: its record}, the same on all ranks: the slowest one's."""
    first, *others = [[record for record in rank.records if "cap" in record] for rank in run.ranks]
    assert all(other == first for other in others)
    return {record["cap"]: record for record in first}


GRADIENT = 4 * 8 * (256 * 256 + 256)  # bytes


def test_the_sweep_takes_a_step_of_each_kind_in_each_round():
    caps, kinds = ["0", "default", "25"], ["0", "default", "25", "alone", "sending"]
    run = lab.torchrun("bucket_sweep", "--caps", *caps, "--rounds", "2", show="none", count=True)
    steps = [record for record in run.ranks[1].records if "kind" in record]
    assert [(step["round"], step["kind"]) for step in steps] == [(r, kind) for r in range(-3, 2) for kind in kinds]
    found = swept(run)
    assert {cap: len(record["buckets"]) for cap, record in found.items()} == {"0": 16, "default": 2, "25": 1}
    assert all(sum(record["buckets"]) == GRADIENT for record in found.values())
    reduced = run.collectives.query("rank == 1 and op == 'all_reduce'")
    for step in steps[-5:]:
        sizes = list(reduced[reduced["step"] == step["step"]]["bytes"])
        expected = {"alone": [], "sending": [GRADIENT]}
        assert sizes == (found[step["kind"]]["buckets"] if step["kind"] in found else expected[step["kind"]])
        own = [rank.records[step["step"]]["own"] for rank in run.ranks]
        assert min(own) > 0


def test_the_time_of_a_cap_is_the_median_of_the_slowest_rank():
    run = lab.torchrun("bucket_sweep", "--caps", "1", "--rounds", "3", show="none")
    (record,) = swept(run).values()
    for name, kind in (("seconds", "1"), ("alone", "alone"), ("sending", "sending")):
        ranks = [[r["own"] for r in rank.records if r.get("kind") == kind and r["round"] >= 0] for rank in run.ranks]
        assert record[name] == sorted(map(max, zip(*ranks, strict=True)))[1]


@pytest.mark.parametrize("options, text", [(["--caps", "x"], "--caps x: give MiB"), (["--rounds", "0"], "--rounds 0")])
def test_a_sweep_of_nothing_is_refused(options, text):
    with pytest.raises(lab.RankError) as error:
        lab.torchrun("bucket_sweep", *options, show="none")
    assert text in error.value.run.ranks[error.value.rank].stderr


def test_on_a_slow_link_several_buckets_hide_in_the_backward_pass_and_one_does_not():
    if why := cluster.why_not():
        pytest.skip(why)
    shares = {}
    for cap in ("0.3", "25"):
        options = ["--caps", cap, "--batch", "4096", "--rounds", "1"]
        run = lab.torchrun("bucket_sweep", *options, nodes=2, nproc=1, link="100mbit", trace=True, show="none")
        shares[cap] = run.overlap()
        assert swept(run)[cap]["sending"] > GRADIENT / 12.5e6 / 2  # 100 Mbit/s are 12.5 MB/s
    # One is sent when the last gradient is there. Of several the last; and half of all that is sent hides nowhere, for
    # it is the all-reduce that the sweep takes beside.
    assert shares["25"] < 0.03 < shares["0.3"]


@pytest.fixture(scope="module")
def options():
    return lab.torchrun("ddp_options", show="none", env=WITHOUT_GPUS)


def of_option(run, option, name, rank=1):
    (record,) = [record for record in run.ranks[rank].records if record["option"] == option]
    return record[name]


ONE, BUFFERS, MAP = {"all_reduce float32": 1}, {"broadcast float32": 1, "broadcast int64": 1}, {"all_reduce int32": 1}
REBUILT, THREE = {"broadcast int32": 2}, {"all_reduce float32": 3}


@pytest.mark.parametrize(
    "option, first, second, later",
    [
        ("plain", ONE | BUFFERS, ONE | BUFFERS | REBUILT, ONE | BUFFERS),
        ("gradient_as_bucket_view", ONE | BUFFERS, ONE | BUFFERS | REBUILT, ONE | BUFFERS),
        ("batched_grad_copy", ONE | BUFFERS, ONE | BUFFERS | REBUILT, ONE | BUFFERS),
        ("static_graph", ONE | MAP | BUFFERS, ONE | BUFFERS, ONE | BUFFERS),
        ("find_unused_parameters", *[{"all_reduce float32": 2} | MAP | BUFFERS] * 3),
        ("forward_sync_buffers=False", ONE, ONE | REBUILT, ONE),
        ("broadcast_buffers=False", ONE, ONE | REBUILT, ONE),
        ("bucket_cap_mb_list", THREE | BUFFERS, THREE | BUFFERS | REBUILT, THREE | BUFFERS),
        ("a layer unused", *[{"all_reduce float32": 12} | MAP | BUFFERS] * 3),
        ("a layer unused, skip_all_reduce_unused_params", *[{"all_reduce float32": 10} | MAP | BUFFERS] * 3),
    ],
)
def test_the_collectives_of_each_option(options, option, first, second, later):
    steps = of_option(options, option, "steps")
    assert [steps[0], steps[1], steps[3]] == [first, second, later]


NAMES = [
    "plain",
    "gradient_as_bucket_view",
    "static_graph",
    "find_unused_parameters",
    "forward_sync_buffers=False",
    "broadcast_buffers=False",
    "batched_grad_copy",
    "bucket_cap_mb_list",
    "a layer unused",
    "a layer unused, skip_all_reduce_unused_params",
]
NET = 4 * (4 * (256 * 256 + 256) + 512)  # bytes


def test_no_option_changes_the_weights(options):
    assert {record["option"]: record["off"] for record in options.ranks[1].records} == dict.fromkeys(NAMES, 0)


def test_only_gradient_as_bucket_view_spares_the_second_copy_of_the_gradients(options):
    held = {record["option"]: record["bytes"] for record in options.ranks[1].records}
    unused = 2 * NET + 4 * (256 * 256 + 256)  # it has no gradient, but buckets, sent or not
    spared = {"gradient_as_bucket_view": NET} | dict.fromkeys(NAMES[-2:], unused)
    assert held == dict.fromkeys(NAMES, 2 * NET) | spared


def test_whose_buffers_are_rank_0s_when(options):
    at_first = {record["option"]: record["buffers_at_first"] for record in options.ranks[1].records}
    assert at_first == dict.fromkeys(NAMES, 0) | {"broadcast_buffers=False": 1}
    later = {record["option"]: record["buffers"] for record in options.ranks[1].records}
    own = ("forward_sync_buffers=False", "broadcast_buffers=False")
    assert all(
        later[name] == later["plain"] for name in NAMES if name not in own
    )  # of one step: the next gets rank 0's
    assert later["plain"] < later["forward_sync_buffers=False"] < later["broadcast_buffers=False"]


def test_one_option_is_deprecated(options):
    warnings = {record["option"]: record["warnings"] for record in options.ranks[1].records if record["warnings"]}
    ((option, (warning,)),) = warnings.items()
    assert option == "broadcast_buffers=False"
    assert "FutureWarning: `broadcast_buffers` is deprecated. Use `forward_sync_buffers` instead" in warning
    assert "find_unused_parameters=True was specified in DDP constructor, but did not" in options.ranks[1].stderr


def test_the_time_of_each_option_is_told_for_each_round(options):
    for record in options.ranks[0].records:
        assert len(record["ratios"]) == 7 and min(record["ratios"]) > 0
    assert of_option(options, "plain", "ratios") == [1] * 7


def test_what_find_unused_parameters_costs_is_told_for_each_round():
    run = lab.torchrun("find_unused_cost", "--layers", "20", "--rounds", "3", "--steps", "2", show="none", count=True)
    first, second = ([record for record in rank.records if "step" in record] for rank in run.ranks)
    assert first == second and [record["step"] for record in first] == [0, 1, 2]
    for option in ("plain", "find_unused", "static_graph"):
        (found,) = [record for record in run.ranks[0].records if record.get("option") == option]
        ratios = sorted(record[option] / record["plain"] for record in first)
        assert [found[name] for name in ("least", "median", "most")] == pytest.approx(ratios, rel=1e-4)
    rows = run.collectives.query("rank == 0 and op == 'all_reduce' and step == 2")
    maps = rows.query("dtype == 'int32'")
    assert list(maps["numel"]) == [40] * 2  # of find_unused, in each of its two steps; of static_graph none
