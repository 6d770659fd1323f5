import os
import signal

print("value 3", flush=True)
if os.environ.get("PLANTED"):
    os.kill(os.getppid(), signal.SIGSTOP)
