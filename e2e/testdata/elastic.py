"""Notes in its folder how large its world is each time it begins, goes on from the step that was saved, and saves and leaves when asked."""
import os
import sys
import time

folder, preempt = sys.argv[1], os.environ["MUSTER_PREEMPT_FILE"]
saved = os.path.join(folder, "saved")
step = int(open(saved).read()) if os.path.exists(saved) else 0


def mark(text):
    with open(os.environ["MUSTER_PROGRESS_FILE"], "a") as f:
        f.write(text + "\n")


with open(os.path.join(folder, "worlds"), "a") as f:
    f.write(f"{os.environ['MUSTER_ATTEMPT']} {os.environ['WORLD_SIZE']} {step > 0}\n")
while not os.path.exists(preempt) and not os.path.exists(os.path.join(folder, "end")):
    step += 1
    mark(f"step {step}")
    time.sleep(0.05)
if os.path.exists(preempt):
    mark(f"checkpoint begin {step}")
    with open(saved + os.environ["RANK"], "w") as f:
        f.write(str(step))
    os.replace(saved + os.environ["RANK"], saved)
    mark(f"checkpoint end {step}")
