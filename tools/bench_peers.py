"""What others' kernels take for the same steps, as it was measured before.

Microseconds a launch inside a CUDA graph on an NVIDIA H200 (CUDA 13.0, driver 580, PCIe Gen5 x16);
top_k 2048, hot_size 4096, rows of 656 bytes, contexts of 32,768, a pool of 2.5 GiB: the steps of
tests/gpu/swap_in_benchmark.cc. Not measured again with ours: hosts of that kind differ by 2 to 6 %.
"""

NAMES = {
    "A": "fused design (vLLM, first)",
    "B": "split design (vLLM, later)",
    "C": "fused kernel (SGLang)",
    "D": "speculative kernel, CLOCK (SGLang)",
}

# (miss %, batch) -> us by name; "best" may be a mix of them.
PEERS = {
    (0, 1): {"A": 21.7, "B": 26.2, "C": 15.9, "D": 5.9, "best": 5.9},
    (0, 64): {"A": 40.6, "B": 46.9, "C": 18.2, "D": 13.1, "best": 13.1},
    (5, 1): {"A": 34.1, "B": 31.7, "C": 27.9, "D": 27.9, "best": 27.9},
    (10, 1): {"A": 45.4, "B": 37.6, "C": 37.4, "D": 36.5, "best": 31.2},
    (10, 8): {"A": 55.6, "B": 60.8, "C": 47.7, "D": 56.2, "best": 47.7},
    (10, 32): {"A": 120, "B": 138, "C": 114, "D": 129, "best": 114},
    (10, 128): {"A": 419, "B": 450, "C": 415, "D": 732, "best": 415},
    (20, 8): {"A": 81.7, "B": 84.5, "C": 75.6, "D": 81.0, "best": 75.6},
}
