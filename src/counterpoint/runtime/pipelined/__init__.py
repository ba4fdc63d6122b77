"""Running the operators of `counterpoint.ir.pipelined`. Importing `operators` registers them for every device.

operators    the kernels: arguments checked, read as data, handed to a lowering
gathers      the products of a gathered operand      scatters   the sum of products that is reduced
arithmetic   products of parts, written where they belong
plain        lowering: the collective, then the matmul; works everywhere, overlaps nothing
"""
