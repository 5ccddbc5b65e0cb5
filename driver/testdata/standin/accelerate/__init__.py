"""Stands in for Accelerate: its state is distributed where LOCAL_RANK is set, and then takes torch's variables."""
import os

from standin import World


class Accelerator:
    def __init__(self, cpu=False):
        assert int(os.environ.get("LOCAL_RANK", -1)) != -1, "Accelerate would run one process alone: LOCAL_RANK is not set"
        self.process_index, self.num_processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_process_index = int(os.environ["LOCAL_RANK"])
        self._world = World(self.process_index, self.num_processes, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

    def wait_for_everyone(self):
        self._world.barrier()
