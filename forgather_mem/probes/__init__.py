"""Which numbers can be read? Probes read and change nothing, except that they may open a measuring window."""
