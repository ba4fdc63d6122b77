"""Running the operators of `counterpoint.ir.pipelined`. Importing `operators` registers them for every device.

    operators       the kernels: arguments checked and read as data
    run, choice     each kind of call, by the lowering that is chosen for it
    gathers         the products of a gathered operand      scatters   the sum of products that is reduced
    arithmetic      products of parts, written where they belong

The lowerings:

    plain           the collective, then the matmul; works everywhere, overlaps nothing
    point_to_point  parts travel as messages while others are multiplied; for any backend that sends in the background
    shared          on one host: operands are read where their ranks have put them
    torch_fused     on CUDA: torch's operators on symmetric memory, where they can run a call
    symmetric       on CUDA: a copying stream fetches parts from symmetric memory, where they cannot
"""
