"""One training: its run, schedule, ledger, phases, guard, summary and facts."""
