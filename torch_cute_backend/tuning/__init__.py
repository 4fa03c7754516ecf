"""Which schedule for which problem: pretuned tables, then an analytic model."""
