"""The optimizer's state in the memory of the host, where the update runs too.

After Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training" (USENIX ATC 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.options import Options


def host_of(device: str) -> str:
    """The name of the first CPU beside a device, such as a GPU."""
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type="CPU", device_index=0).to_string()


def check_offload(options: Options, devices: Sequence[str], processes: int) -> None:
    """Raises ValueError where `offload` would bring nothing, or is not known to be right.

    Args:
        options: of the strategy.
        devices: of the replicas of this process.
        processes: the number of processes.
    """
    if options.offload is None:
        return
    if processes > 1:
        raise ValueError(
            "`offload` was only tried with the devices of one process. Leave it out with several "
            'processes, or use `tfdist.Strategy("mirrored")`. '
            f"Received: offload={options.offload!r} with {processes} processes"
        )
    hosts = [device for device in devices if device == host_of(device)]
    if hosts:
        raise ValueError(
            "`offload` keeps the optimizer's state in the memory of the host, and the replicas "
            "compute there already. Leave it out on CPUs. "
            f"Received: offload={options.offload!r} with a replica on {hosts[0]}"
        )
