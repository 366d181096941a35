// kernels/cuda/indexed_swap_in.cu, compiled by the host's compiler for the simulated GPU.
#include "kernels/cuda/indexed_swap_in.cu"
