"""What is counted in a rank: the collectives torch issued and what they carried."""
