"""Tells Muster how a rank gets on, and asks whether it is to leave. One file, no dependencies: copy it beside your script.

    import muster_progress as muster
    for step in range(muster_start, steps):
        train(step)
        muster.step(step)
        if muster.asked():                       # save and leave
            with muster.checkpoint(step):
                save(step)
            sys.exit(0)
"""
import contextlib
import os
import signal
import time

_file = os.environ.get("MUSTER_PROGRESS_FILE")
_preempt = os.environ.get("MUSTER_PREEMPT_FILE")
_signalled = False
_last = 0.0


def _mark(text):
    if _file:
        with open(_file, "a") as f:  # one short write: whole lines only
            f.write(text + "\n")


def _on_signal(number, frame):
    global _signalled
    _signalled = True


def listen(number=signal.SIGUSR1):
    """Lets the ask signal set a flag instead of ending the rank. Call it in the main thread."""
    signal.signal(number, _on_signal)


def asked():
    """True once the gang is asked to save and leave. Ranks see it at different moments: agree on a step before saving."""
    return _signalled or (_preempt is not None and os.path.exists(_preempt))


def step(number, least_seconds=0.5):
    """Marks a step. Marks that follow each other faster than least_seconds are left out."""
    global _last
    now = time.monotonic()
    if now - _last >= least_seconds:
        _last = now
        _mark(f"step {number}")


@contextlib.contextmanager
def checkpoint(number):
    """Around a save: while it lasts the grace is extended; what it covered counts as saved when it ends without an exception."""
    _mark(f"checkpoint begin {number}")
    try:
        yield
    except BaseException:
        _mark(f"checkpoint failed {number}")
        raise
    _mark(f"checkpoint end {number}")


def may_stop():
    """All is saved: Muster may stop the ranks when it likes, without waiting for them."""
    _mark("may-stop")


def complete():
    """The work is done, although the gang was asked to leave: an exit with 0 counts as complete."""
    _mark("complete")
