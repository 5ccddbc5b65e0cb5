"""What the stand-ins for launchers' libraries share: the ranks meet at a TCP port, as each library's do.

The stand-ins read exactly the variables, or arguments, that the library of the name reads to find its peers, and fail where one is missing.
"""
import json
import socket
import time


class World:
    """Rank 0 listens; every other rank connects and says who it is; barriers are one line to and fro."""

    def __init__(self, rank, size, address, port, listen=True):
        self.rank, self.size, self.peers = rank, size, {}
        if rank == 0 and listen:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            server = socket.socket(family)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            server.listen(size)
            while len(self.peers) < size - 1:
                conn, _ = server.accept()
                file = conn.makefile("rw")
                hello = json.loads(file.readline())
                assert hello["size"] == size and 0 < hello["rank"] < size and hello["rank"] not in self.peers, hello
                self.peers[hello["rank"]] = file
        elif rank > 0:
            deadline = time.monotonic() + 60
            while True:
                try:
                    conn = socket.create_connection((address, port), timeout=60)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            self.root = conn.makefile("rw")
            self._send(self.root, {"rank": rank, "size": size})
        self.barrier()

    @staticmethod
    def _send(file, value):
        file.write(json.dumps(value) + "\n")
        file.flush()

    def barrier(self):
        if self.rank == 0:
            for file in self.peers.values():
                assert json.loads(file.readline()) == "here"
            for file in self.peers.values():
                self._send(file, "go")
        else:
            self._send(self.root, "here")
            assert json.loads(self.root.readline()) == "go"
