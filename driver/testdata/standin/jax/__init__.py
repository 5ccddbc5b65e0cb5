"""Stands in for JAX: initialize takes its four numbers as arguments."""
from standin import World

_world = None


class distributed:
    @staticmethod
    def initialize(coordinator_address, num_processes, process_id, local_device_ids):
        global _world
        host, _, port = coordinator_address.rpartition(":")
        assert host.startswith("[") == (":" in host), coordinator_address
        _world = World(process_id, num_processes, host.strip("[]"), int(port))


def process_index():
    return _world.rank


def process_count():
    return _world.size
