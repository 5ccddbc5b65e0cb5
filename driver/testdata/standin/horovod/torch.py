"""Stands in for Horovod's binding: what horovodrun would have set is read by the core library."""
import json
import os
import socket

_env = os.environ
_root = None


def init():
    assert _env["HOROVOD_CONTROLLER"] == "gloo" and _env["HOROVOD_CPU_OPERATIONS"] == "gloo"
    assert _env["HOROVOD_GLOO_IFACE"] and _env["HOROVOD_HOSTNAME"]
    cross, locals_ = int(_env["HOROVOD_CROSS_RANK"]), int(_env["HOROVOD_LOCAL_SIZE"])
    assert cross * locals_ + local_rank() == rank() and int(_env["HOROVOD_CROSS_SIZE"]) * locals_ == size()
    global _root
    conn = socket.create_connection((_env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(_env["HOROVOD_GLOO_RENDEZVOUS_PORT"])), timeout=60) if rank() == 0 else _patiently()
    _root = conn.makefile("rw")
    _meet()


def _patiently():
    from standin import time

    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((_env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(_env["HOROVOD_GLOO_RENDEZVOUS_PORT"])), timeout=60)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _meet():
    _root.write(json.dumps(rank()) + "\n")
    _root.flush()
    assert json.loads(_root.readline()) == "go"


def rank():
    return int(_env["HOROVOD_RANK"])


def size():
    return int(_env["HOROVOD_SIZE"])


def local_rank():
    return int(_env["HOROVOD_LOCAL_RANK"])


def broadcast_object(value, root_rank):
    _meet()
    return value
