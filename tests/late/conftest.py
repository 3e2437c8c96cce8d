"""The scripts are run, not imported."""

collect_ignore = ["scripts"]
