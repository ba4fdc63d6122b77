"""Playing a step on paper: a discrete-event simulator, lower bounds, and launch orders that can deadlock."""
