"""The wind tunnel: one device stands in for one rank of a cluster, and collectives take the time they would take there.

    with open_tunnel(64, timing=Timing(model)) as tunnel:
        ...  # torch.distributed is initialised as rank 0 of 64; eager and compiled code run unchanged

Compute is real and communication is emulated: a collective moves the data that it would move within this rank, holds
its group's channel for as long as the network would take, and whoever waits for it waits until then. So real kernels
meet real overlap, without a second device.
"""

from counterpoint.runtime.tunnel.log import Call, CallLog, Summary
from counterpoint.runtime.tunnel.timing import Timing
from counterpoint.runtime.tunnel.world import Tunnel, open_tunnel

__all__ = ["Call", "CallLog", "Summary", "Timing", "Tunnel", "open_tunnel"]
