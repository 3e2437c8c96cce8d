"""Whether a series of sizes grows, how fast, since when, and whether it slows down."""
