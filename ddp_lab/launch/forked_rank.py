"""What torchrun's fork mode runs for every rank, by its --run-path: rank.py, which is loaded already."""

from ddp_lab.launch import rank

rank.main(forked=True)
