"""Getting graphs: what torch.compile makes, a whole train step, any world size; wrappers that put collectives in it."""
