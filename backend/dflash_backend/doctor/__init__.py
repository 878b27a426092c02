"""Whether a host is fit to serve: one look at everything that a launch needs, in plain findings."""
