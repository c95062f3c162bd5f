"""`python cuda_probe.py` starts CUDA's driver. It writes cuInit's error, CUDA's words and name for it, and counts GPUs.

It is a program of its own, since a broken driver may hang or crash. It imports nothing of this package.
"""

import ctypes
import os
import signal

if __name__ == "__main__":
    signal.alarm(10)  # seconds; ends this process even in a driver that hangs
    cuda = ctypes.CDLL("libcuda.so.1")
    words, count = ctypes.c_char_p(), ctypes.c_int()
    error = cuda.cuInit(0)
    os.write(1, b"%d\n" % error)  # now: each further call may end this process
    for read_words in ("cuGetErrorString", "cuGetErrorName"):
        cuda[read_words](error, ctypes.byref(words))
        os.write(1, b"%s\n" % (words.value or b""))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    os.write(1, b"%d\n" % count.value)
