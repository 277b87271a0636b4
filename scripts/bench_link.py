#!/usr/bin/env python3
"""Measures what the links of emulated hosts carry: the rate of an all-reduce of 16 MB, and all that went over the wire.

    .venv/bin/python scripts/bench_link.py                      2, 3 and 4 hosts, four links: some 6 minutes
    .venv/bin/python scripts/bench_link.py --hosts 2 --links 1gbit,none
    .venv/bin/python scripts/bench_link.py --json figures.json

Each rank of a ring sends 2 (n - 1) / n times the data (Patarasuk and Yuan, 2009). `rate` is that over the best of six
tries, `of the link` its share of the rate that was set. `wire` is what the interfaces have sent in the whole run over
what the meter's bytes come to; above 1 it is headers, acknowledgements and torchrun's own words.

Exit code: 0 fine, 1 a rate was below nine tenths of the link's, 2 bad usage or a machine without emulated hosts.
"""

import argparse
import json
import sys

try:
    import ddp_lab as lab
    from ddp_lab.launch import cluster
except ImportError as error:
    sys.stderr.write(f"{error}: run this by the Python of the course, .venv/bin/python {sys.argv[0]}\n")
    sys.exit(2)

SIZE = 16 << 20  # bytes of the all-reduce whose rate is shown
ENOUGH = 0.9  # of the link's rate
LINKS = ["100mbit", "1gbit", "2gbit", "none"]


def measure(hosts, link):
    """One run of the lab cost_all_reduce, a rank on each host, as a row of figures (see row)."""
    run = lab.torchrun("cost_all_reduce", nodes=hosts, nproc=1, link=link, count=True, show="none", timeout=600)
    seconds = {record["size"]: record["seconds"] for record in run.ranks[0].records if "size" in record}
    calls = run.collectives
    own = calls[(calls["rank"] == 0) & (calls["op"] == "all_reduce")]
    return row(hosts, link, seconds[SIZE], int(own["bytes"].sum()), int(run.wire["sent"].max()))


def row(hosts, link, seconds, metered, sent):
    """{hosts, link, rate (bit/s), share (of the link, None without one), wire}. `metered`: bytes of a rank's
    all-reduces, `sent`: bytes that the busiest interface has sent.
    """
    ring = 2 * (hosts - 1) / hosts
    rate = ring * SIZE * 8 / seconds
    share = rate / cluster.rate(link) if link else None
    return {"hosts": hosts, "link": link, "rate": rate, "share": share, "wire": sent / (ring * metered)}


def shown(row):
    """A row as a line of the table."""
    share = "" if row["share"] is None else f"{row['share']:.2f}"
    hosts, link, rate, wire = row["hosts"], row["link"] or "no limit", row["rate"] / 1e6, row["wire"]
    return f"{hosts:>5}  {link:>9}  {rate:>10.0f}  {share:>11}  {wire:>6.3f}"


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--hosts", default="2,3,4", metavar="N,N", help="numbers of hosts (default 2,3,4)")
    parser.add_argument("--links", default=",".join(LINKS), metavar="RATE,RATE", help="rates as tc has them, or none")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file as well")
    options = parser.parse_args(argv)
    try:
        options.hosts = [int(number) for number in options.hosts.split(",")]
        options.links = [None if link == "none" else link for link in options.links.split(",")]
        for link in filter(None, options.links):
            cluster.rate(link)
    except (ValueError, lab.InputError) as error:
        parser.error(str(error))
    if not all(2 <= number <= cluster.MOST_HOSTS for number in options.hosts):
        parser.error(f"--hosts: 2 to {cluster.MOST_HOSTS} hosts")
    return options


def main(argv=None):
    options = arguments(argv)
    if why := cluster.why_not():
        sys.stderr.write(f"{why}\n")
        return 2
    rows = [measure(hosts, link) for hosts in options.hosts for link in options.links]
    print("\nhosts       link  rate, Mb/s  of the link    wire", *map(shown, rows), sep="\n")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    return int(any(row["share"] is not None and row["share"] < ENOUGH for row in rows))


if __name__ == "__main__":
    sys.exit(main())
