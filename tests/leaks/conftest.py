"""The scripts of the zoo are run, not imported."""

collect_ignore = ["zoo", "by_others"]
