"""The experiments of the course, one short script each, runnable by hand with torchrun."""
