"""Horovod (gloo controller) under Muster: the driver starts the ranks itself, so there is no `horovodrun`, no ssh and no host list.

What horovodrun would do is done here: its names for the driver's variables, and the rendezvous server, which rank 0 opens at
MASTER_ADDR:MASTER_PORT. All members must have the same number of ranks.
"""
import os
import threading
from types import SimpleNamespace

env = os.environ
rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
local, locals_ = int(env["LOCAL_RANK"]), int(env["LOCAL_WORLD_SIZE"])
node, nodes = int(env["GROUP_RANK"]), int(env["GROUP_WORLD_SIZE"])
env.update({
    "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size), "HOROVOD_LOCAL_RANK": str(local), "HOROVOD_LOCAL_SIZE": str(locals_),
    "HOROVOD_CROSS_RANK": str(node), "HOROVOD_CROSS_SIZE": str(nodes), "HOROVOD_HOSTNAME": f"member{node}",
    "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": env["GLOO_SOCKET_IFNAME"],
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": env["MASTER_ADDR"], "HOROVOD_GLOO_RENDEZVOUS_PORT": env["MASTER_PORT"],
})
if rank == 0:
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("", int(env["MASTER_PORT"])), RendezvousHandler, False)
    server.init([SimpleNamespace(hostname=f"member{n}", size=size, local_rank=i, local_size=locals_, cross_size=nodes) for n in range(nodes) for i in range(locals_)])
    threading.Thread(target=server.serve_forever, daemon=True).start()

import horovod.torch as hvd

hvd.init()
print(f"horovod: rank {hvd.rank()} of {hvd.size()}, card {hvd.local_rank()} of this member", flush=True)

# optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(1, 6):
    # optimizer.step()
    with open(env["MUSTER_PROGRESS_FILE"], "a") as f:
        f.write(f"step {step}\n")
hvd.broadcast_object("all are here", root_rank=0)
print(f"horovod: rank {hvd.rank()} is done", flush=True)
