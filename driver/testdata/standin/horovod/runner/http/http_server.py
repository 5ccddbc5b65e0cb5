"""Stands in for Horovod's rendezvous server: the ranks meet there."""
import json
import socketserver
import threading

RendezvousHandler = object()


class _Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            who = json.loads(line)
            self.server.arrive(who)
            if who == 0:  # the server goes with rank 0, so that is told last
                self.server.others_left()
            self.wfile.write(b'"go"\n')
            self.server.left(who)


class RendezvousHTTPServer(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True

    def __init__(self, addr, handler, verbose):
        super().__init__(addr, _Handler)
        self.lock, self.here, self.gone, self.size = threading.Condition(), [], [], None

    def init(self, plan):
        self.size = plan[0].size
        assert len(plan) == self.size, "one slot a rank"
        assert len({(s.hostname, s.local_rank) for s in plan}) == self.size, "no slot twice"
        assert all(s.local_size * s.cross_size == self.size for s in plan)

    def arrive(self, who):
        with self.lock:
            self.here.append(who)
            turn = (len(self.here) - 1) // self.size
            self.lock.notify_all()
            assert self.lock.wait_for(lambda: len(self.here) >= (turn + 1) * self.size, timeout=60), f"only {self.here} came"

    def left(self, who):
        with self.lock:
            self.gone.append(who)
            self.lock.notify_all()

    def others_left(self):
        with self.lock:
            turn = self.gone.count(0)
            assert self.lock.wait_for(lambda: len(self.gone) >= turn * self.size + self.size - 1, timeout=60)
